package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	annotationName    = "io.containerd.image.name"
	annotationRefName = "org.opencontainers.image.ref.name"
	maxMetadata       = 8 << 20 // bytes of an index, manifest or configuration
)

// Import reads an archive, an OCI layout or what docker save writes, plain or
// compressed, and adds all images in it. It returns their references. When it
// fails nothing has changed.
func (s *Store) Import(ctx context.Context, r io.Reader) ([]string, error) {
	st, err := s.stage()
	if err != nil {
		return nil, err
	}
	defer st.close()
	dir := filepath.Join(st.dir, "archive")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create staging directory: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open staging directory: %w", err)
	}
	defer root.Close()
	if err := extractArchive(&contextReader{ctx, r}, root); err != nil {
		return nil, err
	}
	sources, err := readArchive(root)
	if err != nil {
		return nil, err
	}
	if err := s.commit(ctx, st, sources); err != nil {
		return nil, err
	}
	var refs []string
	for _, src := range sources {
		refs = append(refs, src.refs...)
	}
	slices.Sort(refs)
	return slices.Compact(refs), nil
}

// extractArchive writes the archive's files below root. Archives hold plain
// files, directories and, from older dockers, symlinks to other layers.
func extractArchive(r io.Reader, root *os.Root) error {
	plain, closePlain, err := decompress(r)
	if err != nil {
		return err
	}
	defer closePlain()
	tr := tar.NewReader(plain)
	buf := make([]byte, 256<<10)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			if n == 0 {
				return fmt.Errorf("%w: it is empty", ErrArchive)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrArchive, err)
		}
		if n > maxEntries {
			return fmt.Errorf("%w: more than %d entries", ErrArchive, maxEntries)
		}
		if err := extractEntry(h, tr, root, buf); err != nil {
			return fmt.Errorf("%w: entry %q: %w", ErrArchive, h.Name, err)
		}
	}
}

func extractEntry(h *tar.Header, body io.Reader, root *os.Root, buf []byte) error {
	if strings.HasPrefix(h.Name, "/") {
		return errors.New("absolute name")
	}
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	if name == "" {
		return nil
	}
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o700)
	case tar.TypeReg, '\x00':
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.CopyBuffer(struct{ io.Writer }{f}, body, buf)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		// Followed through root only, which refuses whatever leads outside.
		return root.Symlink(h.Linkname, name)
	case tar.TypeXGlobalHeader:
		return nil
	}
	return fmt.Errorf("entry type %q does not belong in an image archive", h.Typeflag)
}

// readArchive finds the images in an extracted archive.
func readArchive(root *os.Root) ([]source, error) {
	var sources []source
	if _, err := root.Lstat("index.json"); err == nil {
		if sources, err = readLayout(root); err != nil {
			return nil, err
		}
	}
	if len(sources) == 0 {
		if _, err := root.Lstat("manifest.json"); err == nil {
			if sources, err = readDocker(root); err != nil {
				return nil, err
			}
		}
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("%w: no named image in it (neither an OCI layout with image names nor an archive of docker save)", ErrArchive)
	}
	return sources, nil
}

func readMetadata(root *os.Root, name string) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrArchive, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxMetadata+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrArchive, err)
	}
	if len(data) > maxMetadata {
		return nil, fmt.Errorf("%w: %s is larger than %d bytes", ErrArchive, name, maxMetadata)
	}
	return data, nil
}

func layoutBlob(h v1.Hash) string { return path.Join("blobs", h.Algorithm, h.Hex) }

// readBlob reads a small blob of a layout and checks its digest.
func readBlob(root *os.Root, h v1.Hash) ([]byte, error) {
	data, err := readMetadata(root, layoutBlob(h))
	if err != nil {
		return nil, err
	}
	return data, checkBlob("blob", data, h.String())
}

// readLayout reads the named images of an OCI layout.
func readLayout(root *os.Root) ([]source, error) {
	data, err := readMetadata(root, "index.json")
	if err != nil {
		return nil, err
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: index.json: %w", ErrArchive, err)
	}
	var sources []source
	for _, desc := range index.Manifests {
		ref := desc.Annotations[annotationName]
		if ref == "" {
			ref = desc.Annotations[annotationRefName]
		}
		if ref == "" {
			continue
		}
		full, err := Normalize(ref)
		if err != nil {
			return nil, err
		}
		src, err := layoutImage(root, desc, 0)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", full, err)
		}
		src.refs = []string{full}
		sources = append(sources, src)
	}
	return sources, nil
}

// layoutImage follows a descriptor, through indexes, to this machine's image.
func layoutImage(root *os.Root, desc v1.Descriptor, depth int) (source, error) {
	if depth > 4 {
		return source{}, fmt.Errorf("%w: indexes nested too deeply", ErrArchive)
	}
	data, err := readBlob(root, desc.Digest)
	if err != nil {
		return source{}, err
	}
	if desc.MediaType.IsIndex() {
		index, err := v1.ParseIndexManifest(bytes.NewReader(data))
		if err != nil {
			return source{}, fmt.Errorf("%w: index: %w", ErrArchive, err)
		}
		next, ok := choosePlatform(index.Manifests)
		if !ok {
			return source{}, fmt.Errorf("%w: no image for linux/%s in it", ErrArchive, runtime.GOARCH)
		}
		return layoutImage(root, next, depth+1)
	}
	m, err := parseManifest(data)
	if err != nil {
		return source{}, err
	}
	config, err := readBlob(root, m.Config.Digest)
	if err != nil {
		return source{}, err
	}
	src := source{manifest: data, config: config}
	for _, l := range m.Layers {
		src.layers = append(src.layers, fileLayer(root, layoutBlob(l.Digest), l.Digest.String(), l.Size))
	}
	return src, nil
}

// choosePlatform picks this machine's entry of an index; one without a
// platform is taken when nothing fits better.
func choosePlatform(list []v1.Descriptor) (v1.Descriptor, bool) {
	var any *v1.Descriptor
	for i, d := range list {
		switch {
		case d.Platform == nil:
			any = &list[i]
		case d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH:
			return d, true
		}
	}
	if any == nil {
		return v1.Descriptor{}, false
	}
	return *any, true
}

func fileLayer(root *os.Root, name, digest string, size int64) layerSource {
	return layerSource{digest: digest, size: size, open: func() (io.ReadCloser, error) {
		f, err := root.Open(name)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrArchive, err)
		}
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			return nil, errors.Join(fmt.Errorf("%w: %s is not a file", ErrArchive, name), err, f.Close())
		}
		return f, nil
	}}
}

// readDocker reads what docker save writes. It has no manifest that a
// registry would know: one is made, so that the image has a digest.
func readDocker(root *os.Root) ([]source, error) {
	data, err := readMetadata(root, "manifest.json")
	if err != nil {
		return nil, err
	}
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%w: manifest.json: %w", ErrArchive, err)
	}
	var sources []source
	for _, d := range list {
		if len(d.RepoTags) == 0 {
			continue
		}
		src := source{}
		for _, tag := range d.RepoTags {
			full, err := Normalize(tag)
			if err != nil {
				return nil, err
			}
			src.refs = append(src.refs, full)
		}
		if src.config, err = readMetadata(root, filepath.Clean(d.Config)); err != nil {
			return nil, err
		}
		if err := src.dockerLayers(root, d.Layers); err != nil {
			return nil, err
		}
		sources = append(sources, src)
	}
	return sources, nil
}

func (src *source) dockerLayers(root *os.Root, names []string) error {
	var cf v1.ConfigFile
	if err := json.Unmarshal(src.config, &cf); err != nil {
		return fmt.Errorf("%w: configuration: %w", ErrArchive, err)
	}
	if len(cf.RootFS.DiffIDs) != len(names) {
		return fmt.Errorf("%w: configuration lists %d layers, manifest.json %d", ErrArchive, len(cf.RootFS.DiffIDs), len(names))
	}
	hash, err := v1.NewHash(digestBytes(src.config))
	if err != nil {
		return err
	}
	m := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: hash, Size: int64(len(src.config))},
	}
	for i, name := range names {
		name = filepath.Clean(name)
		st, err := root.Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: layer %s is missing", ErrArchive, name)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrArchive, err)
		}
		src.layers = append(src.layers, fileLayer(root, name, "", st.Size()))
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: types.OCIUncompressedLayer, Digest: cf.RootFS.DiffIDs[i], Size: st.Size()})
	}
	src.manifest, err = json.Marshal(m)
	return err
}
