package check

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// commands returns the README's commands of shepherd and sheepctl, by word:
// those of its sh blocks and those that stand in a sentence.
func commands(text string) (list [][]string) {
	var lines []string
	for _, m := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllStringSubmatch(text, -1) {
		lines = append(lines, strings.Split(m[1], "\n")...)
	}
	for _, m := range regexp.MustCompile("`((?:shepherd|sheepctl) [^`\n]+)`").FindAllStringSubmatch(text, -1) {
		lines = append(lines, m[1])
	}
	quoted := regexp.MustCompile(`'[^']*'`)
	for _, line := range lines {
		line, _, _ = strings.Cut(line, " #")
		words := strings.Fields(quoted.ReplaceAllString(line, "TEXT"))
		if len(words) == 0 {
			continue
		}
		switch words[0] = strings.TrimPrefix(words[0], "bin/"); words[0] {
		case "shepherd", "sheepctl":
			list = append(list, words)
		}
	}
	return list
}

// split takes a command apart: the words before its first flag or operand, and
// the names of its flags.
func split(words []string) (path, flags []string) {
	plain := regexp.MustCompile(`^[a-z-]+$`)
	for _, w := range words {
		if strings.HasPrefix(w, "-") {
			name, _, _ := strings.Cut(w, "=")
			flags = append(flags, name)
		} else if len(flags) == 0 && plain.MatchString(w) {
			path = append(path, w)
		}
	}
	return path, flags
}

// Every command in the README is one that the programs have, by their own help,
// and one that a test or the demo runs.
func TestReadmeCommands(t *testing.T) {
	list := commands(readme(t))
	if len(list) < 8 {
		t.Fatalf("found %v: the test looks at too little", list)
	}
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", bin+"/", "../../cmd/shepherd", "../../cmd/sheepctl").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	help := func(program string, args ...string) string {
		out, err := exec.Command(filepath.Join(bin, program), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run := whatTestsRun(t)
	for _, words := range list {
		name := strings.Join(words, " ")
		path, flags := split(words[1:])
		var text string
		if words[0] == "shepherd" {
			text = help("shepherd", "--help")
			for _, w := range path {
				if !strings.Contains(text, "\n  shepherd "+w+" ") {
					t.Errorf("%s: shepherd's help has no command %s", name, w)
				}
			}
		} else {
			// The help of a group lists its commands; operands come after them.
			text = help("sheepctl", "--help")
			for i, w := range path {
				if !strings.Contains(text, "\n  "+w+" ") {
					if i == 0 || strings.Contains(text, "Available Commands:") {
						t.Errorf("%s: sheepctl %s has no command %s", name, strings.Join(path[:i], " "), w)
					}
					break
				}
				text = help("sheepctl", append(append([]string{}, path[:i+1]...), "--help")...)
			}
		}
		for _, f := range flags {
			if f == "--help" { // it has just been run
				continue
			}
			if !regexp.MustCompile(`(?m)(^|\s)` + regexp.QuoteMeta(f) + `[ =,]`).MatchString(text) {
				t.Errorf("%s: there is no flag %s in the help of %s", name, f, words[0])
			}
		}
		for _, w := range append(path, flags...) {
			// As a word of its own in a string: "create", "create deployment x".
			if w != "--help" && !regexp.MustCompile("[\"` ]"+regexp.QuoteMeta(w)+"[\"` =]").MatchString(run) {
				t.Errorf("%s: no test and no demo runs anything with %s", name, w)
			}
		}
	}
}

// whatTestsRun is the text of the demo and of the tests that run the programs.
func whatTestsRun(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"../demo", "../e2e", "../../cmd"} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			if dir != "../demo" && !strings.HasSuffix(path, "_test.go") {
				return nil
			}
			text, err := os.ReadFile(path)
			all.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}
