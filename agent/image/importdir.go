package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ImportDir imports the archives (*.tar, *.tar.gz) that lie in the store's
// directory and were not imported before, and returns the references that
// came. One that is refused is reported, remembered and not tried again until
// it changes; the others are imported all the same.
func (s *Store) ImportDir(ctx context.Context) ([]string, error) {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("list image directory: %w", err)
	}
	var refs []string
	var errs []error
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), ".tar") && !strings.HasSuffix(e.Name(), ".tar.gz") {
			continue
		}
		got, err := s.importFile(ctx, e.Name())
		if err != nil {
			errs = append(errs, fmt.Errorf("import %s: %w", e.Name(), err))
		}
		refs = append(refs, got...)
	}
	return refs, errors.Join(errs...)
}

func (s *Store) importFile(ctx context.Context, base string) ([]string, error) {
	f, err := os.Open(filepath.Join(s.cfg.Dir, base))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	mark := importedFile{Size: st.Size(), ModTime: st.ModTime().UnixNano()}
	t, err := s.refs.load()
	if err != nil {
		return nil, err
	}
	if old, ok := t.Imported[base]; ok && old.Size == mark.Size && old.ModTime == mark.ModTime {
		return nil, nil
	}
	refs, err := s.Import(ctx, f)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		mark.Error = err.Error()
	}
	return refs, errors.Join(err, s.refs.update(func(t *table) error {
		t.Imported[base] = mark
		return nil
	}))
}
