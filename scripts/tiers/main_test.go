package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestReadCountsWhatHappened(t *testing.T) {
	in := `{"Action":"output","Package":"github.com/shepherd-project/shepherd/fsm","Test":"TestA","Output":"why it broke\n"}
{"Action":"fail","Package":"github.com/shepherd-project/shepherd/fsm","Test":"TestA"}
{"Action":"output","Package":"github.com/shepherd-project/shepherd/fsm","Test":"TestB","Output":"noise\n"}
{"Action":"pass","Package":"github.com/shepherd-project/shepherd/fsm","Test":"TestB"}
{"Action":"skip","Package":"github.com/shepherd-project/shepherd/fsm","Test":"TestC"}
not json
`
	o := outcome{passed: map[string]bool{}, skipped: map[string]bool{}}
	var out bytes.Buffer
	if err := o.read(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(o.failed, []string{"fsm.TestA"}) || !o.passed["fsm.TestB"] || !o.skipped["fsm.TestC"] {
		t.Fatalf("outcome %+v", o)
	}
	for want, there := range map[string]bool{"why it broke": true, "not json": true, "noise": false} {
		if strings.Contains(out.String(), want) != there {
			t.Errorf("output has %q: %v\n%s", want, !there, out.String())
		}
	}
}

func TestSkipsFailInCI(t *testing.T) {
	all := outcome{passed: map[string]bool{}, skipped: map[string]bool{"fsm.TestX": true}}
	for _, r := range required {
		all.passed[r] = true
	}
	t.Setenv("CI", "")
	if p := missing(&all); len(p) != 0 {
		t.Fatalf("on a laptop: %v", p)
	}
	t.Setenv("CI", "true")
	if p := missing(&all); len(p) != 1 || !strings.Contains(p[0], "fsm.TestX") {
		t.Fatalf("in CI: %v", p)
	}
	delete(all.passed, required[0])
	if p := missing(&all); len(p) != 2 {
		t.Fatalf("with a required test missing: %v", p)
	}
}
