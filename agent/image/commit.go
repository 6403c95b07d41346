package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// source is one image on its way into the store: what an archive and a
// registry have in common.
type source struct {
	refs     []string // normalised
	manifest []byte
	config   []byte
	layers   []layerSource // bottom first
}

// layerSource is a layer's stored form.
type layerSource struct {
	digest string // of the stored form; empty when nothing names one
	size   int64
	open   func() (io.ReadCloser, error)
}

func digestBytes(b []byte) string {
	h := sha256.New()
	h.Write(b)
	return digestOf(h)
}

// commit verifies and unpacks all sources in the staging directory, flushes
// them, and only then moves them into place and names them.
func (s *Store) commit(ctx context.Context, st *staging, sources []source) error {
	staged := map[string]string{} // diff ID -> staged directory
	records := map[string]record{}
	for i := range sources {
		rec, err := s.prepare(ctx, st, &sources[i], staged)
		if err != nil {
			return err
		}
		for _, ref := range sources[i].refs {
			records[ref] = rec
		}
	}
	if len(staged) > 0 {
		if err := st.sync(); err != nil {
			return err
		}
	}
	// Under the table's lock, so that Prune cannot remove a layer between its
	// arrival and its name.
	return s.refs.update(func(t *table) error {
		for diff, dir := range staged {
			if err := s.place(dir, diff); err != nil {
				return err
			}
		}
		for _, rec := range records {
			for _, diff := range rec.Layers {
				path, err := s.layerPath(diff)
				if err != nil {
					return err
				}
				if _, err := os.Lstat(path); err != nil {
					return fmt.Errorf("layer %s was removed meanwhile: %w", diff, err)
				}
			}
		}
		for _, src := range sources {
			for _, blob := range [][]byte{src.manifest, src.config} {
				if err := writeFileAtomic(s.blobPath(digestBytes(blob)), blob); err != nil {
					return fmt.Errorf("write blob: %w", err)
				}
			}
		}
		for ref, rec := range records {
			t.Refs[ref] = rec
		}
		return nil
	})
}

// place renames a staged layer to its final name. Another import may have
// been faster: then its copy, which has the same digest, stays.
func (s *Store) place(dir, diff string) error {
	path, err := s.layerPath(diff)
	if err != nil {
		return err
	}
	err = os.Rename(dir, path)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("place layer: %w", err)
	}
	return nil
}

// prepare unpacks the layers of one image that the store lacks.
func (s *Store) prepare(ctx context.Context, st *staging, src *source, staged map[string]string) (record, error) {
	var cf v1.ConfigFile
	if err := json.Unmarshal(src.config, &cf); err != nil {
		return record{}, fmt.Errorf("%w: configuration: %w", ErrArchive, err)
	}
	if cf.OS != "" && cf.OS != "linux" {
		return record{}, fmt.Errorf("%w: made for %s, not for linux", ErrArchive, cf.OS)
	}
	if len(cf.RootFS.DiffIDs) != len(src.layers) {
		return record{}, fmt.Errorf("%w: configuration lists %d layers, manifest %d", ErrArchive, len(cf.RootFS.DiffIDs), len(src.layers))
	}
	rec := record{Manifest: digestBytes(src.manifest), Config: digestBytes(src.config)}
	for i, l := range src.layers {
		diff := cf.RootFS.DiffIDs[i].String()
		path, err := s.layerPath(diff)
		if err != nil {
			return record{}, err
		}
		rec.Layers = append(rec.Layers, diff)
		rec.Size += l.size
		if _, err := os.Lstat(path); err == nil || staged[diff] != "" {
			continue
		}
		dir, err := s.unpack(ctx, st, l, diff)
		if err != nil {
			return record{}, fmt.Errorf("layer %s: %w", diff, err)
		}
		staged[diff] = dir
	}
	return rec, nil
}

// unpack unpacks one layer into staging and checks both of its digests.
func (s *Store) unpack(ctx context.Context, st *staging, l layerSource, diff string) (string, error) {
	dir := filepath.Join(st.dir, hexOf(diff))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask is
		return "", err
	}
	rc, err := l.open()
	if err != nil {
		return "", err
	}
	defer rc.Close()
	sum := sha256.New()
	stored := io.TeeReader(&contextReader{ctx, rc}, sum)
	got, err := unpackLayer(stored, dir, s.cfg.MaxLayerBytes)
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(io.Discard, stored); err != nil { // what the decompressor left
		return "", fmt.Errorf("read layer: %w", err)
	}
	if stored := digestOf(sum); l.digest != "" && stored != l.digest {
		return "", fmt.Errorf("%w: is %s, want %s", ErrDigest, stored, l.digest)
	}
	if got != diff {
		return "", fmt.Errorf("%w: unpacked it is %s", ErrDigest, got)
	}
	return dir, nil
}

// contextReader ends reading when its context does.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// checkBlob fails when data does not have the digest.
func checkBlob(what string, data []byte, digest string) error {
	if got := digestBytes(data); got != digest {
		return fmt.Errorf("%w: %s is %s, want %s", ErrDigest, what, got, digest)
	}
	return nil
}

// parseManifest decodes an image manifest of either family.
func parseManifest(data []byte) (*v1.Manifest, error) {
	m, err := v1.ParseManifest(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: manifest: %w", ErrArchive, err)
	}
	return m, nil
}
