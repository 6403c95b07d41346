package check

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The state machine and the planners decide from their arguments alone: no
// clock, no randomness, no I/O.
func TestNoClockAndNoChance(t *testing.T) {
	forbiddenCalls := map[string][]string{
		"time":      {"Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Sleep"},
		"math/rand": nil, // as a whole
	}
	for dir, exempt := range map[string]map[string]bool{
		"fsm":                   {"crypto/rand": true}, // NewRequestID, which no Apply calls
		"controllers/scheduler": {},
	} {
		files, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no files in %s: %v", dir, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			checkFile(t, file, forbiddenCalls, exempt)
		}
	}
}

func checkFile(t *testing.T, file string, calls map[string][]string, exempt map[string]bool) {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, imp := range f.Imports {
		path, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		switch path {
		case "os", "net", "net/http", "os/exec", "syscall", "log", "math/rand", "crypto/rand":
			if !exempt[path] {
				t.Errorf("%s imports %s", file, path)
			}
		}
		name := filepath.Base(path)
		if imp.Name != nil {
			name = imp.Name.Name
		}
		names[name] = path
	}
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		for _, bad := range calls[names[pkg.Name]] {
			if sel.Sel.Name == bad {
				t.Errorf("%s uses %s.%s", set.Position(sel.Pos()), pkg.Name, bad)
			}
		}
		// math/rand/v2 is fine as a *rand.Rand that is passed in, not as the
		// package's own source.
		if names[pkg.Name] == "math/rand/v2" && sel.Sel.Name != "Rand" {
			t.Errorf("%s draws from the global source: rand.%s", set.Position(sel.Pos()), sel.Sel.Name)
		}
		return true
	})
}
