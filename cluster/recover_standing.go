package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/fsm"
)

// pathStanding tells a server whether the cluster has left it behind.
const pathStanding = wire.PathPrefix + "standing"

// standingTimeout bounds asking the other servers: one that drops packets must
// not hold up a start for long.
const standingTimeout = time.Second

// standing is what a server hears about itself.
type standing struct {
	Superseded bool   `json:"superseded"`
	Epoch      uint64 `json:"epoch"`
	// Cluster are the servers of the one that answers.
	Cluster []wire.Server `json:"cluster"`
}

// SupersededError is why a server must set its log aside: the cluster was
// recovered or restored without it.
type SupersededError struct {
	Epoch uint64
	// Via are the addresses at which it can enter the cluster again.
	Via []string
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf("the cluster went on without this server in restore epoch %d: its log does not count any more", e.Epoch)
}

// standing is the gate's half. Marks are only made while a server is stopped
// and never taken back, so the local state knows them.
func (g *Gate) standing(r *http.Request, _ []byte) (any, error) {
	id, err := g.caller(r, pki.RoleServer)
	if err != nil {
		return nil, err
	}
	v := g.cfg.Store.View()
	return standing{Superseded: Superseded(v, id.Name), Epoch: v.Epoch(), Cluster: g.cfg.Cluster.Servers()}, nil
}

// CheckStanding asks servers once whether the cluster has left this one
// behind. It returns a *SupersededError then, and nil also where none answers.
// A server that this one's own history has left behind does not count.
func CheckStanding(ctx context.Context, verifier *pki.Verifier, source *pki.Source, view *fsm.View, others []wire.Server) error {
	ctx, cancel := context.WithTimeout(ctx, standingTimeout)
	defer cancel()
	answers := make(chan error, len(others))
	for _, s := range others {
		go func() {
			var a standing
			err := getOnce(ctx, verifier.ClientConfig(source), http.MethodPost, s.Address, pathStanding, &a)
			switch {
			case err != nil || !a.Superseded || a.Epoch <= view.Epoch():
				answers <- nil
			case Superseded(view, s.ID):
				answers <- fmt.Errorf("%s at %s was recovered in restore epoch %d, and so was this server: two clusters of one name. "+
					"Decide which one stays, and move the data directory of the other away", s.Name, s.Address, a.Epoch)
			default:
				e := &SupersededError{Epoch: a.Epoch, Via: []string{s.Address}}
				for _, m := range a.Cluster {
					if !slices.Contains(e.Via, m.Address) {
						e.Via = append(e.Via, m.Address)
					}
				}
				answers <- e
			}
		}()
	}
	var err error
	for range others {
		a := <-answers
		var best, one *SupersededError
		if errors.As(a, &one) && (!errors.As(err, &best) || one.Epoch > best.Epoch) || err == nil {
			err = a
		}
	}
	return err
}

// leaveBehind notes IDs that this server must never speak to again, before its
// state is there to say so.
func (h *Home) leaveBehind(ids []string) error {
	for _, id := range ids {
		if !slices.Contains(h.record.LeftBehind, id) {
			h.record.LeftBehind = append(h.record.LeftBehind, id)
		}
	}
	return h.save()
}

// LeftBehind reports whether a recovery on this machine left the server behind.
func (h *Home) LeftBehind(id string) bool { return slices.Contains(h.record.LeftBehind, id) }

// Via are addresses at which a server that set its log aside enters again.
func (h *Home) Via() []string { return h.record.Via }

// SetAside gives the directory's server a new ID of the same name, and keeps
// its log and snapshots under another name. It enters the cluster by Via, as a
// new server, with no need of a token. It returns where the old log is. It may
// be cut off at any point: the next OpenHome ends what it began.
func (h *Home) SetAside(via []string) (kept string, err error) {
	old := h.record
	h.record.ID = NewServerID(old.Name)
	h.record.Bootstrap, h.record.Opened, h.record.Entered = false, false, false
	h.record.Via, h.record.Aside, h.record.LeftBehind = via, old.ID, nil
	if err := h.save(); err != nil {
		h.record = old
		return "", err
	}
	return h.asideDir(old.ID), h.finishAside()
}

func (h *Home) asideDir(id string) string { return filepath.Join(h.dir, "superseded", id) }

// finishAside moves what SetAside has announced.
func (h *Home) finishAside() error {
	if h.record.Aside == "" {
		return nil
	}
	dir := h.asideDir(h.record.Aside)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return describe("create", dir, err)
	}
	for _, name := range []string{logFile, snapshotDir} {
		if err := os.Rename(filepath.Join(h.dir, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return describe("set aside", filepath.Join(h.dir, name), err)
		}
	}
	// It names the old ID. The next start issues another.
	if err := os.Remove(filepath.Join(h.pki(), "server.crt")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return describe("remove", filepath.Join(h.pki(), "server.crt"), err)
	}
	h.record.Aside = ""
	return h.save()
}
