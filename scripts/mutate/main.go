// Command mutate takes the guarantees out of the code, one by one, in a copy of
// the tree, and demands that the test which is to guard each of them fails.
// Words select mutations by name. It is run from the top of a clone.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// mutation replaces one line of a file, which must be there once.
type mutation struct {
	name, file, old, new string
	pkg, test            string   // who must notice
	args                 []string // of the test
}

var (
	mutations = []mutation{
		{"the outcome of a resend is not looked up", "api/forwarded.go", "if outcome, ok := v.Outcome(w.id); ok {", "if outcome, ok := v.Outcome(w.id); ok && false {",
			"./scripts/histories", "TestGhostOfACreate", nil},
		{"each copy of a request has a handler", "cluster/flights.go", "if running := f.running[of]; running != nil {", "if running := f.running[of]; running != nil && false {",
			"./scripts/histories", "TestGhostTwinsOnOneLeader", nil},
		{"a copy that was given up is handled in its term", "cluster/flights.go", "of.term == f.term && req.Attempt < f.latest[of.id]:", "false:",
			"./cluster", "TestLateCopyOfARefusal", nil},
		{"a copy that was given up is planned in a later term", "api/forwarded.go", "if !leading || term != w.req.Term {", "if !leading {",
			"./scripts/histories", "TestGhostOfARefusedCreate", nil},
		{"a copy is handled in a later term", "cluster/forward.go", "case l.term > req.Term ||", "case",
			"./cluster", "TestCopyIsHandledInItsTermOnly", nil},
		{"the planning term is not checked", "fsm/apply.go", "if c.Term != term {", "if c.Term > term {",
			"./scripts/histories", "TestGhostOfADeposedLeader", nil},
		{"Apply takes requests from before the horizon", "fsm/apply.go", "if s.next.Expired(c.ID) {", "if s.next.Expired(c.ID) && false {",
			"./scripts/histories", "TestGhostBeyondTheTable", nil},
		{"preconditions are not checked", "fsm/apply.go", "if detail := c.Pre[i].check(s.get(c.Pre[i].Key)); detail != \"\" {",
			"if detail := c.Pre[i].check(s.get(c.Pre[i].Key)); detail == \"never\" {", "./scripts/histories", "TestSimulatedHistories", nil},
		{"reads do without a read index", "api/readview.go", "if err := s.readIndex(ctx); err != nil {", "if err := ctx.Err(); err != nil {",
			"./scripts/histories", "TestSimulatedHistories", nil},
		{"a leader reads without asking a majority", "cluster/readindex.go", "if err := n.confirmTerm(ctx, l.term, nil); err != nil {", "if err := ctx.Err(); err != nil {",
			"./cluster", "TestFrozenLeaderReadsNothingOld", nil},
		{"watches leave out an event", "api/watcher.go", "if err := w.sendEvent(e); err != nil {", "if e.Revision%7 == 0 {\ncontinue\n}\nif err := w.sendEvent(e); err != nil {",
			"./scripts/histories", "TestSimulatedHistories", []string{"-seeds=2"}},
		{"bookmarks are ahead", "api/watcher.go", "if err := w.sendBookmark(w.cursor.Position(), false); err != nil {",
			"if err := w.sendBookmark(w.cursor.Position()+1, false); err != nil {", "./scripts/histories", "TestSimulatedHistories", []string{"-seeds=2"}},
	}
	errSurvived = errors.New("a mutation was not noticed")
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(words []string) (err error) {
	dir, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	archive := exec.Command("sh", "-c", `git archive HEAD | tar x -C "$0"`, dir)
	if out, err := archive.CombinedOutput(); err != nil {
		return fmt.Errorf("copy the tree: %w: %s", err, out)
	}
	for _, m := range mutations {
		if len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(m.name, w) }) {
			continue
		}
		result := "noticed by"
		killed, kerr := m.try(dir)
		switch {
		case kerr != nil:
			return fmt.Errorf("%s: %w", m.name, kerr)
		case !killed:
			result, err = "NOT NOTICED by", errSurvived
		}
		fmt.Printf("%-46s %s %s\n", m.name, result, m.test)
	}
	return err
}

// try applies the mutation, runs its test and takes the mutation back.
func (m mutation) try(dir string) (killed bool, err error) {
	path := filepath.Join(dir, m.file)
	was, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	mutant, err := m.apply(was)
	if err != nil {
		return false, err
	}
	if err := os.WriteFile(path, mutant, 0o600); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.WriteFile(path, was, 0o600)) }()
	cmd := exec.Command("go", append([]string{"test", "-count=1", "-timeout=5m", "-run", "^" + m.test + "$", m.pkg}, m.args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return false, nil
	case !bytes.Contains(out, []byte("--- FAIL: "+m.test)) && !bytes.Contains(out, []byte("panic: ")):
		return false, fmt.Errorf("the test did not get to run: %w: %s", err, out)
	}
	return true, nil
}

// apply returns the source with the mutation.
func (m mutation) apply(src []byte) ([]byte, error) {
	if n := bytes.Count(src, []byte(m.old)); n != 1 {
		return nil, fmt.Errorf("%s has the line %q %d times, not once", m.file, m.old, n)
	}
	return bytes.Replace(src, []byte(m.old), []byte(m.new), 1), nil
}
