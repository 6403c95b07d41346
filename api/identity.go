package api

import (
	"context"
	"slices"
	"strings"
)

// Identity is who sends a request, as its credential proved. Node is set for an
// agent's certificate: the name of its node.
type Identity struct {
	User   string
	Groups []string
	Node   string
}

// groupMasters may do everything.
const groupMasters = "system:masters"

// isAdmin says whether the identity may do everything.
func (i Identity) isAdmin() bool { return slices.Contains(i.Groups, groupMasters) }

type identityKey struct{}

func withIdentity(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// identityFrom is the caller's identity; the zero value when there is none.
func identityFrom(ctx context.Context) Identity {
	id, _ := ctx.Value(identityKey{}).(Identity)
	return id
}

// managerFromUserAgent is the field manager of a client that names none: its
// User-Agent up to the first slash.
func managerFromUserAgent(userAgent string) string {
	name, _, _ := strings.Cut(userAgent, "/")
	if len(name) > 128 {
		name = name[:128]
	}
	return name
}
