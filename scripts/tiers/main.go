// Command tiers runs the tests by tier, prints the time of each, and fails when
// a test fails or when one that must run did not.
//
// With CI set in the environment a skipped test is a failure, but for the
// names in allowedSkips.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const module = "github.com/shepherd-project/shepherd/"

// tier is a set of packages that is tested in one go.
type tier struct {
	name string
	args []string // of go test
}

var tiers = []tier{
	{"1 tables, API, planners", []string{"./api/...", "./cmd/sheepctl/...", "./scripts/mkimage/...", "./scripts/tiers/...", "./scripts/mutate/..."}},
	{"1 controllers", []string{"-race", "./controllers/..."}},
	{"2 state machine", []string{"-race", "./fsm/...", "./cluster/pki/..."}},
	{"3 simulation under the race detector", []string{"-race", "./cluster", "-sim.seeds=8"}},
	{"5 histories of the simulated API", []string{"./scripts/histories", "-seeds=100"}},
	{"4 processes", []string{"./cmd/shepherd/...", "./scripts/agents/..."}},
	{"6 agent and namespaces", []string{"-race", "./agent/...", "./scripts/machines/..."}},
	{"6 clients and real pods", []string{"./scripts/e2e/..."}},
}

// required must have run and passed: they are what the promises stand on.
var required = []string{
	"fsm.TestTwinsAgree",
	"fsm.TestRefusedCommandsChangeNothing",
	"fsm.TestHistoryIsExact",
	"fsm.TestDamagedSnapshotIsRefused",
	"api.TestDeleteCollectionResent",
	"cluster.TestFaults",
	"cluster.TestTransferUnderPartition",
	"cluster.TestFullDisk",
	"cluster.TestSlowDisksEverywhere",
	"cluster.TestDamagedLog",
	"cluster.TestFrozenLeaderReadsNothingOld",
	"cluster.TestPortChecksRoles",
	"cluster.TestOneWayPartitionsKillNoLiveNode",
	"cluster.TestFlappingLeadershipAppliesNothingOfAnOldTerm",
	"scripts/histories.TestSimulatedHistories",
	"scripts/histories.TestControllersUnderFaults",
	"scripts/histories.TestGhostOfADeposedLeader",
	"scripts/histories.TestGhostBeyondTheTable",
	"scripts/histories.TestGhostTwinsOnOneLeader",
	"scripts/histories.TestGhostOfACreate",
	"scripts/histories.TestGhostAndTheDeadReplica",
	"scripts/histories.TestGhostOfAGeneratedName",
	"cmd/shepherd.TestHistoriesOfProcesses",
	"cmd/shepherd.TestThreeServers",
	"cmd/shepherd.TestFullDisk",
	"cmd/shepherd.TestReadOnlyDisk",
	"cmd/shepherd.TestDescriptorsExhausted",
	"cmd/shepherd.TestClientsLeaveDescriptors",
	"cmd/shepherd.TestStandalone",
	"cmd/shepherd.TestMetrics",
	"scripts/machines.TestCloseEndsEverything",
	"scripts/e2e.TestCleanup",
	"scripts/e2e.TestClients",
	"scripts/e2e.TestDrillKill",
	"scripts/e2e.TestAgentRestart",
	"scripts/e2e.TestWorkerLoss",
}

// allowedSkips may be skipped in CI too, each for a reason that it states.
var allowedSkips = []string{}

// event is a line of go test -json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// outcome is what became of each test, by package and name.
type outcome struct {
	passed, skipped map[string]bool
	failed          []string
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run tests the tiers whose names contain one of the words, or all.
func run(words []string) error {
	all := outcome{passed: map[string]bool{}, skipped: map[string]bool{}}
	var times []string
	start := time.Now()
	for _, t := range tiers {
		if len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(t.name, w) }) {
			continue
		}
		fmt.Printf("--- tier %s\n", t.name)
		began := time.Now()
		if err := t.run(&all); err != nil {
			return fmt.Errorf("tier %s: %w", t.name, err)
		}
		times = append(times, fmt.Sprintf("%-40s %6.1f s", t.name, time.Since(began).Seconds()))
	}
	fmt.Printf("\n%s\n%-40s %6.1f s\n", strings.Join(times, "\n"), "all tiers", time.Since(start).Seconds())
	problems := all.failed
	if len(words) == 0 {
		problems = append(problems, missing(&all)...)
	}
	for _, p := range problems {
		fmt.Println("FAIL", p)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", len(all.passed), len(problems), len(all.skipped))
	if len(problems) > 0 {
		return fmt.Errorf("%d problems", len(problems))
	}
	return nil
}

// missing names what should have run and did not.
func missing(all *outcome) (problems []string) {
	for _, name := range required {
		if !all.passed[name] {
			problems = append(problems, name+": must run and pass, and did not")
		}
	}
	if os.Getenv("CI") == "" {
		return problems
	}
	for name := range all.skipped {
		if !slices.Contains(allowedSkips, name) {
			problems = append(problems, name+": skipped, and must not be here")
		}
	}
	slices.Sort(problems)
	return problems
}

func (t tier) run(all *outcome) error {
	cmd := exec.Command("go", append([]string{"test", "-json", "-count=1", "-timeout", "900s"}, t.args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	before := len(all.failed)
	if err := all.read(out, os.Stdout); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil && len(all.failed) == before {
		return fmt.Errorf("go test: %w", err) // it did not get as far as a test
	}
	return nil
}

// read takes the events of one go test and prints the output of what failed.
func (o *outcome) read(r io.Reader, w io.Writer) error {
	output := map[string]*bytes.Buffer{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(w, lines.Text()) // a build failure, for one
			continue
		}
		name := strings.TrimPrefix(e.Package, module)
		if e.Test != "" {
			name += "." + e.Test
		}
		switch e.Action {
		case "output", "build-output":
			if output[name] == nil {
				output[name] = &bytes.Buffer{}
			}
			output[name].WriteString(e.Output)
		case "pass":
			if e.Test != "" {
				o.passed[name] = true
			} else {
				fmt.Fprintln(w, "ok  ", name)
			}
			delete(output, name)
		case "skip":
			if e.Test != "" {
				o.skipped[name] = true
				fmt.Fprintf(w, "skip %s\n%s", name, output[name])
			}
			delete(output, name)
		case "fail", "build-fail":
			o.failed = append(o.failed, name)
			fmt.Fprintf(w, "FAIL %s\n", name)
			if output[name] != nil {
				_, _ = output[name].WriteTo(w)
			}
		}
	}
	return lines.Err()
}
