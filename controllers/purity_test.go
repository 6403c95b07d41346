package controllers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// waits are the only files that may look at the clock: they time loops, and
// decide nothing about objects.
var waits = map[string]bool{"manager.go": true, "loop.go": true}

// TestPlannersAreDeterministic finds uses of the clock and of the shared random
// source: planners get both as arguments.
func TestPlannersAreDeterministic(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("scheduler/*.go")
	if err != nil {
		t.Fatal(err)
	}
	forbidden := map[string]map[string]bool{
		"time":         {"Now": true, "Since": true, "Until": true},
		"math/rand":    nil, // not at all
		"crypto/rand":  nil,
		"math/rand/v2": {"Int": true, "IntN": true, "N": true, "Uint64": true, "Uint32": true, "Float64": true, "Perm": true, "Shuffle": true},
	}
	for _, name := range append(files, more...) {
		if strings.HasSuffix(name, "_test.go") || waits[name] {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		imported := map[string]map[string]bool{}
		for _, spec := range file.Imports {
			path := strings.Trim(spec.Path.Value, `"`)
			names, watched := forbidden[path]
			if watched && names == nil {
				t.Errorf("%s imports %s", name, path)
			}
			local := filepath.Base(path)
			if local == "v2" {
				local = "rand"
			}
			if spec.Name != nil {
				local = spec.Name.Name
			}
			if names != nil {
				imported[local] = names
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && imported[x.Name][s.Sel.Name] {
					t.Errorf("%s uses %s.%s", fset.Position(s.Pos()), x.Name, s.Sel.Name)
				}
			}
			return true
		})
	}
}
