// Package check holds the tests of rules that no single package can keep.
package check

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/shepherd-project/shepherd/"

// allowed are the import edges between the project's packages. A package that
// ends in /... stands for itself and all below it. scripts may import
// anything but cmd.
var allowed = map[string][]string{
	"fsm":                   {},
	"api/wire":              {},
	"cluster":               {"fsm", "api/wire", "cluster/pki", "cluster/seal", "cluster/simnet"}, // the last in tests alone
	"cluster/simnet":        {},
	"cluster/pki":           {},
	"cluster/seal":          {},
	"api/resource":          {"fsm"},
	"api/openapi/...":       {"api/openapi/...", "api/resource"},
	"controllers":           {"fsm", "api/resource", "controllers/scheduler"},
	"controllers/scheduler": {"fsm", "api/resource"},
	"api":                   {"fsm", "api/resource", "api/wire", "api/openapi"},
	"agent":                 {"api/wire", "agent/..."},
	"agent/runtime/shim":    {"agent/runtime/cgroup"},
	"agent/runtime/cgroup":  {},
	"agent/...":             {"api/wire", "agent/..."},
	"cmd/...":               {"..."},
	"scripts/...":           {"fsm/...", "cluster/...", "api/...", "controllers/...", "agent/...", "scripts/..."},
}

func TestImportEdges(t *testing.T) {
	for pkg, imports := range packages(t) {
		rules, ok := allowed[pkg]
		if !ok {
			for pattern, r := range allowed {
				if matches(pattern, pkg) && strings.HasSuffix(pattern, "...") {
					rules, ok = r, true
				}
			}
		}
		if !ok {
			t.Errorf("package %s has no place in the design: give it one in this test and in the README's tree", pkg)
			continue
		}
		for _, imported := range imports {
			if !slices.ContainsFunc(rules, func(r string) bool { return matches(r, imported) }) {
				t.Errorf("%s imports %s, an edge that must not exist", pkg, imported)
			}
		}
	}
}

func matches(pattern, pkg string) bool {
	if pattern == "..." {
		return true
	}
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == base || strings.HasPrefix(pkg, base+"/")
	}
	return pattern == pkg
}

// The shim is in every pod: what it links, every pod pays for.
func TestShimIsLean(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"cmd/shepherd-shim").Output()
	if err != nil {
		t.Fatal(explain(err))
	}
	for _, dep := range strings.Fields(string(out)) {
		if strings.HasPrefix(dep, "k8s.io/") || dep == "net/http" || dep == "crypto/tls" {
			t.Errorf("the shim links %s", dep)
		}
	}
}

// A simulated network is linked by tests and by nothing that is installed.
func TestProgramsLinkNoSimulation(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"cmd/...").Output()
	if err != nil {
		t.Fatal(explain(err))
	}
	if deps := strings.Fields(string(out)); slices.Contains(deps, module+"cluster/simnet") || !slices.Contains(deps, module+"cluster") {
		t.Error("a program links cluster/simnet, or the list of its packages is wrong")
	}
}

// packages returns the project's packages with the project's packages that
// each imports, tests included.
func packages(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", module+"...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(explain(err))
	}
	found := map[string][]string{}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p struct {
			ImportPath                         string
			Imports, TestImports, XTestImports []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(p.ImportPath, module)
		found[name] = nil
		for _, i := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if rest, ours := strings.CutPrefix(i, module); ours && rest != name && !slices.Contains(found[name], rest) {
				found[name] = append(found[name], rest)
			}
		}
	}
	if len(found) < 10 {
		t.Fatalf("go list found %d packages", len(found))
	}
	return found
}

func explain(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(exit.Stderr)
	}
	return err.Error()
}
