package check

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shepherd-project/shepherd/agent"
	"github.com/shepherd-project/shepherd/controllers"
)

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The defaults that the README states are those of the code.
func TestReadmeStatesTheDefaults(t *testing.T) {
	text := readme(t)
	c, a := controllers.DefaultConfig(), agent.DefaultConfig()
	for _, want := range []string{
		fmt.Sprintf("| node is NotReady after | %.0f s without a heartbeat |", c.NodeMonitorGrace.Seconds()),
		fmt.Sprintf("| its pods are replaced after | %.0f s more |", c.EvictionGrace.Seconds()),
		fmt.Sprintf("| agent: heartbeat, pod sync | %.0f s, %.0f s |", a.HeartbeatInterval.Seconds(), a.SyncInterval.Seconds()),
		"| pass-through on a worker | " + a.LocalAddr + " |",
		fmt.Sprintf("`%s`, `%s`, `%s`", a.DataDir, a.RunDir, "/"+a.CgroupRoot),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the README does not say %q", want)
		}
	}
}

// Each target of make that the README names exists, and each package of its
// tree.
func TestReadmeNamesWhatExists(t *testing.T) {
	text := readme(t)
	makefile, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	targets := regexp.MustCompile("(?m)(?:`|^|=\\d+ )make ([a-z]+)").FindAllStringSubmatch(text, -1)
	if len(targets) < 4 {
		t.Fatalf("found %v: the test looks at too little", targets)
	}
	for _, m := range targets {
		if !strings.Contains(string(makefile), "\n"+m[1]+":") {
			t.Errorf("the README names `make %s`, which the Makefile lacks", m[1])
		}
	}
	_, tree, ok := strings.Cut(text, "## The tree")
	if !ok {
		t.Fatal("the README has no tree")
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(tree, -1) {
		if info, err := os.Stat(filepath.Join("..", "..", m[1])); err != nil || !info.IsDir() {
			t.Errorf("the README's tree names %s: %v", m[1], err)
		}
	}
}
