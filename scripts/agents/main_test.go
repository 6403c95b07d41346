package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAgentsThroughTheLossOfALeader runs the program as its users do: few
// agents, often heard, lose their leader, and nobody is thought dead.
func TestAgentsThroughTheLossOfALeader(t *testing.T) {
	dir := t.TempDir()
	for _, pkg := range []string{"./cmd/shepherd", "./scripts/agents"} {
		build := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", pkg)
		build.Dir = filepath.Join("..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	program := filepath.Join(dir, "agents")
	// Its exit code judges times, which a busy machine may miss: not here.
	out, err := exec.CommandContext(t.Context(), program, "-bin", filepath.Join(dir, "shepherd"),
		"-agents", "20", "-every", "500ms", "-for", "6s", "-settle", "1s", "-kill").CombinedOutput()
	t.Logf("agents: %v", err)
	for _, want := range []string{"20 agents on 3 servers, all heard", "the leader is killed", "nodes declared dead             0", "calm after"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	help, err := exec.CommandContext(t.Context(), program, "-help").CombinedOutput()
	if err != nil || !strings.Contains(string(help), "-reconnect -burn 2 -for 10m") {
		t.Errorf("-help: %v: %s", err, help)
	}
	if out, err := exec.CommandContext(t.Context(), program, "-agents", "0").CombinedOutput(); err == nil || !strings.Contains(string(out), "must be positive") {
		t.Errorf("no agents at all: %v: %s", err, out)
	}
}
