// Package image keeps container images on a node: it imports them from tar
// archives, pulls them from registries, and unpacks their layers into
// directories that serve as they are as lower directories of an overlay.
//
// The store's directory:
//
//	blobs/sha256/HEX    manifests and configurations, by digest
//	layers/HEX/         an unpacked layer, by the digest of its plain tar
//	refs.json           the table of references, replaced atomically
//	tmp/                staging; nothing in it is ever used by a container
//	*.tar               archives to be imported, put there by an administrator
//
// Everything is staged, verified and flushed first and renamed into place
// afterwards, the table of references last. So a refused or interrupted import
// changes nothing, and whatever the table names is complete.
package image

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

var (
	// ErrNotPresent is returned when an image is not in the store and may not
	// be pulled.
	ErrNotPresent = errors.New("image is not present")
	// ErrInvalidReference is returned for a reference that cannot be parsed.
	ErrInvalidReference = errors.New("invalid image reference")
	// ErrArchive is returned for an archive or layer that is damaged,
	// truncated or tries to reach outside of itself.
	ErrArchive = errors.New("bad image archive")
	// ErrDigest is returned when content does not have the digest it is
	// named by.
	ErrDigest = errors.New("digest mismatch")
)

// Image is an image that is complete on this node. It is a value; its slices
// are the caller's own.
type Image struct {
	// Ref is the reference that was asked for, normalised.
	Ref string
	// Digest is the manifest's digest, "sha256:HEX".
	Digest string
	// ID is the configuration's digest, "sha256:HEX".
	ID string
	// Config holds the command, environment and user the image asks for.
	Config v1.Config
	// Layers are the absolute paths of the unpacked layers, top first.
	Layers []string
	// Size is the sum of the layers' sizes as stored in the registry or
	// archive, in bytes.
	Size int64
}

// RepoDigest returns the reference by digest that a pod's status shows.
func (i *Image) RepoDigest() string {
	ref, err := name.ParseReference(i.Ref)
	if err != nil {
		return i.Digest
	}
	return familiar(ref.Context().Name()) + "@" + i.Digest
}

// Normalize returns the full form of a reference: "web" becomes
// "docker.io/library/web:latest".
func Normalize(ref string) (string, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return "", fmt.Errorf("%w %q: %w", ErrInvalidReference, ref, err)
	}
	return familiar(parsed.Name()), nil
}

// familiar gives Docker Hub the name that everybody writes.
func familiar(s string) string {
	if rest, ok := strings.CutPrefix(s, "index.docker.io/"); ok {
		return "docker.io/" + rest
	}
	return s
}
