package pki

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// TokenResource holds the tokens' records, by token ID.
const TokenResource = "tokens.shepherd.internal"

// tokenVersion begins every token; another layout gets another version.
const tokenVersion = "shp1"

var (
	// ErrTokenMalformed is wrapped when a text is not a token.
	ErrTokenMalformed = errors.New("malformed token")
	// ErrTokenUnknown is returned for a token that this cluster never gave
	// out or has revoked, and for a wrong secret.
	ErrTokenUnknown = errors.New("the token is not valid in this cluster (wrong, revoked, or of another cluster)")
	// ErrTokenExpired is wrapped when a token was good once.
	ErrTokenExpired = errors.New("the token has expired")
	// ErrTokenRole is wrapped when a token is good but for another role.
	ErrTokenRole = errors.New("the token is for another role")
)

// Token lets a machine join in one role. Its text form is
// shp1.ROLE.CAPIN.ID.SECRET. It is secret as a whole: never log it, log ID.
type Token struct {
	Role   Role
	CAPin  string
	ID     string
	secret string
}

// NewToken draws a token of the CA's cluster.
func NewToken(role Role, ca *CA) Token {
	var id [6]byte
	var secret [32]byte
	_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the process instead
	_, _ = rand.Read(secret[:])
	return Token{Role: role, CAPin: ca.Pin(), ID: hex.EncodeToString(id[:]), secret: base64.RawURLEncoding.EncodeToString(secret[:])}
}

// ParseToken reads the text form. Space around it is ignored. The error never
// holds a part of the text.
func ParseToken(text string) (Token, error) {
	parts := strings.Split(strings.TrimSpace(text), ".")
	if parts[0] != tokenVersion {
		return Token{}, fmt.Errorf("%w: it does not begin with %q", ErrTokenMalformed, tokenVersion+".")
	}
	if len(parts) != 5 {
		return Token{}, fmt.Errorf("%w: it has %d parts, not 5 (was it cut short?)", ErrTokenMalformed, len(parts))
	}
	t := Token{Role: Role(parts[1]), CAPin: parts[2], ID: parts[3], secret: parts[4]}
	if t.Role != RoleServer && t.Role != RoleAgent {
		return Token{}, fmt.Errorf("%w: its role is neither server nor agent", ErrTokenMalformed)
	}
	if pin, err := base64.RawURLEncoding.Strict().DecodeString(t.CAPin); err != nil || len(pin) != sha256.Size {
		return Token{}, fmt.Errorf("%w: its CA pin is damaged", ErrTokenMalformed)
	}
	if id, err := hex.DecodeString(t.ID); err != nil || len(id) != 6 {
		return Token{}, fmt.Errorf("%w: its ID is damaged", ErrTokenMalformed)
	}
	if secret, err := base64.RawURLEncoding.Strict().DecodeString(t.secret); err != nil || len(secret) != 32 {
		return Token{}, fmt.Errorf("%w: its secret is damaged (was it cut short?)", ErrTokenMalformed)
	}
	return t, nil
}

// Reveal is the text form, secret and all.
func (t Token) Reveal() string {
	return strings.Join([]string{tokenVersion, string(t.Role), t.CAPin, t.ID, t.secret}, ".")
}

// String hides the secret, so that a token in a log line does no harm.
func (t Token) String() string { return fmt.Sprintf("%s token %s", t.Role, t.ID) }

// GoString hides the secret from %#v.
func (t Token) GoString() string { return t.String() }

// hash binds the secret to the role and the ID. The secret has 256 random
// bits, so that a plain hash cannot be reversed by guessing.
func (t Token) hash() [sha256.Size]byte {
	return sha256.Sum256([]byte("shepherd token v1\x00" + string(t.Role) + "\x00" + t.ID + "\x00" + t.secret))
}

// TokenRecord is what the cluster keeps of a token: object data, in JSON.
type TokenRecord struct {
	Version int       `json:"version"`
	Role    Role      `json:"role"`
	Hash    string    `json:"hash"` // hex of SHA-256
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"` // zero: never
	// Note says who keeps the token, for people.
	Note string `json:"note,omitempty"`
}

// Record makes what the cluster keeps. A ttl of zero means that the token
// never expires.
func (t Token) Record(now time.Time, ttl time.Duration, note string) TokenRecord {
	sum := t.hash()
	r := TokenRecord{Version: 1, Role: t.Role, Hash: hex.EncodeToString(sum[:]), Created: now.UTC(), Note: note}
	if ttl > 0 {
		r.Expires = now.Add(ttl).UTC()
	}
	return r
}

// Encode is the object data of the record.
func (r TokenRecord) Encode() ([]byte, error) {
	out, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode a token's record: %w", err)
	}
	return out, nil
}

// DecodeTokenRecord reads object data.
func DecodeTokenRecord(data []byte) (TokenRecord, error) {
	var r TokenRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read a token's record: %w", err)
	}
	if r.Version != 1 {
		return r, fmt.Errorf("read a token's record: version %d is newer than this program", r.Version)
	}
	return r, nil
}

// Check compares a presented token with the record. It takes the same time
// wherever a wrong secret differs.
func (r TokenRecord) Check(t Token, now time.Time) error {
	want, err := hex.DecodeString(r.Hash)
	if err != nil {
		return fmt.Errorf("read a token's record: %w", err)
	}
	got := t.hash()
	if subtle.ConstantTimeCompare(got[:], want) != 1 || t.Role != r.Role {
		return ErrTokenUnknown
	}
	if !r.Expires.IsZero() && now.After(r.Expires) {
		return fmt.Errorf("%w on %s; take the current one from DATA/token/%s of any server", ErrTokenExpired, r.Expires.Format(time.RFC3339), r.Role)
	}
	return nil
}

// NeedsRenewal reports whether half of the token's life has passed: then a
// fresh one is given out while the old one is still good.
func (r TokenRecord) NeedsRenewal(now time.Time) bool {
	return !r.Expires.IsZero() && now.After(r.Created.Add(r.Expires.Sub(r.Created)/2))
}
