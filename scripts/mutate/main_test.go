package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The code moves on, and mutations that fit no more would guard nothing.
func TestMutationsFitTheCode(t *testing.T) {
	for _, m := range mutations {
		src, err := os.ReadFile(filepath.Join("..", "..", m.file))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.apply(src); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
