package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/fsm"
)

// DefaultTokenTTL is how long a token lets machines join. A fresh one takes
// its place in the token file at half of that.
const DefaultTokenTTL = 365 * 24 * time.Hour

// tokenGrace is how long the record of an expired token is kept, so that who
// presents it hears that it expired.
const tokenGrace = 30 * 24 * time.Hour

// maxTokenRecord bounds a record on its way to the leader, in bytes.
const maxTokenRecord = 4096

func tokenKey(id string) fsm.Key { return fsm.Key{Resource: pki.TokenResource, Name: id} }

// CheckToken looks a presented token up in the view. The error wraps
// pki.ErrTokenUnknown or pki.ErrTokenExpired, or says that the token's record
// cannot be read.
func CheckToken(view *fsm.View, token pki.Token, now time.Time) error {
	o := view.Get(tokenKey(token.ID))
	if o == nil {
		return pki.ErrTokenUnknown
	}
	record, err := pki.DecodeTokenRecord(o.Data)
	if err != nil {
		return err
	}
	return record.Check(token, now)
}

// TokenPath is the file in which a server keeps its token of a role.
func TokenPath(dataDir string, role pki.Role) string {
	return filepath.Join(dataDir, "token", string(role))
}

// EnsureTokens sees to it that the server's token files hold tokens that are
// good for at least another half of their life. Each server has tokens of its
// own, so that losing one server loses no way to join.
func (g *Gate) EnsureTokens(ctx context.Context, dataDir, note string) error {
	if err := g.cfg.Cluster.ReadIndex(ctx); err != nil {
		return fmt.Errorf("check the join tokens: %w", err)
	}
	view, now := g.cfg.Store.View(), g.cfg.Cluster.Now()
	for _, role := range []pki.Role{pki.RoleServer, pki.RoleAgent} {
		path := TokenPath(dataDir, role)
		if g.tokenFileGood(view, path, role, now) {
			continue
		}
		token := pki.NewToken(role, g.cfg.CA)
		if err := g.registerToken(ctx, token, note); err != nil {
			return fmt.Errorf("register a %s: %w", token, err)
		}
		if err := pki.WriteFile(path, []byte(token.Reveal()+"\n")); err != nil {
			return err
		}
		g.logger.Info("wrote a join token", "role", role, "id", token.ID, "file", path)
	}
	return nil
}

// tokenFileGood reports whether the file's token needs no replacement. One
// that cannot be read is replaced: tokens can always be drawn anew.
func (g *Gate) tokenFileGood(view *fsm.View, path string, role pki.Role, now time.Time) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			g.logger.Warn("cannot read a token file; it is written anew", "error", err)
		}
		return false
	}
	token, err := pki.ParseToken(string(text))
	if err != nil || token.Role != role {
		g.logger.Warn("a token file is damaged; it is written anew", "file", path)
		return false
	}
	o := view.Get(tokenKey(token.ID))
	if o == nil {
		return false
	}
	record, err := pki.DecodeTokenRecord(o.Data)
	return err == nil && record.Check(token, now) == nil && !record.NeedsRenewal(now)
}

// tokenRegistration is what a server asks the leader to keep. The secret does
// not leave the server that drew it.
type tokenRegistration struct {
	ID     string          `json:"id"`
	Record pki.TokenRecord `json:"record"`
}

func (g *Gate) registerToken(ctx context.Context, token pki.Token, note string) error {
	return g.ask(ctx, pathTokens, tokenRegistration{ID: token.ID, Record: token.Record(g.cfg.Cluster.Now(), g.cfg.TokenTTL, note)})
}

// keepToken is the leader's half: it stores the record and forgets tokens
// that expired long ago.
func (g *Gate) keepToken(ctx context.Context, body []byte) *wire.Response {
	var reg tokenRegistration
	if err := json.Unmarshal(body, &reg); err != nil || reg.ID == "" || len(body) > maxTokenRecord {
		return refusal(http.StatusBadRequest, "malformed token registration")
	}
	data, err := reg.Record.Encode()
	if err != nil {
		return refusal(http.StatusBadRequest, err.Error())
	}
	key := tokenKey(reg.ID)
	return g.decide(ctx, func(view *fsm.View) (plan, error) {
		if o := view.Get(key); o != nil {
			if string(o.Data) == string(data) {
				return plan{}, nil // a resend
			}
			return plan{}, refuse(http.StatusConflict, "token ID %s is taken", reg.ID)
		}
		p := plan{pre: []fsm.Precondition{{Key: key, Absent: true}}, ops: []fsm.Op{{Verb: fsm.Create, Key: key, UID: newUID(), Data: data}}}
		for o := range view.List(pki.TokenResource, "") {
			old, err := pki.DecodeTokenRecord(o.Data)
			if err == nil && !old.Expires.IsZero() && g.cfg.Cluster.Now().After(old.Expires.Add(tokenGrace)) {
				p.ops = append(p.ops, fsm.Op{Verb: fsm.Delete, Key: o.Key, UID: o.UID})
			}
		}
		return p, nil
	})
}
