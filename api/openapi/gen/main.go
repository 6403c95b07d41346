// Command gen writes the served OpenAPI documents, compressed, into the
// directory named by its argument. It is run by go generate in package openapi.
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/shepherd-project/shepherd/api/openapi/build"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want one argument, the directory to write to")
	}
	docs, err := build.Documents()
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(args[0], "*.gz"))
	if err != nil {
		return fmt.Errorf("list old documents: %w", err)
	}
	for _, file := range old {
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("remove old document: %w", err)
		}
	}
	for name, data := range docs {
		var packed bytes.Buffer
		w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		if err != nil {
			return fmt.Errorf("compress %s: %w", name, err)
		}
		if _, err := w.Write(data); err != nil {
			return fmt.Errorf("compress %s: %w", name, err)
		}
		if err := w.Close(); err != nil {
			return fmt.Errorf("compress %s: %w", name, err)
		}
		file := filepath.Join(args[0], strings.ReplaceAll(name, "/", "_")+".gz")
		if err := os.WriteFile(file, packed.Bytes(), 0o644); err != nil {
			return fmt.Errorf("write document: %w", err)
		}
	}
	return nil
}
