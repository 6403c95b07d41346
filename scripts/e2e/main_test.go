// Package e2e drives whole clusters from outside: real servers and agents on
// machines made out of namespaces, real pods, and two clients, the project's
// own and Debian's kubectl. It holds tests only, and needs root.
package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// prefix begins the names of this package's cgroups and directories; the
// process ID that follows tells a later run which of them are nobody's.
const prefix = "shepherd-e2e-"

// webRef is the image of the pods: scripts/webapp and nothing else.
const webRef = "e2e/web:1"

var (
	workDir  string // everything that is made on disk
	binDir   string // the three programs
	webImage string // archive with webRef
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("skipping all of e2e: making machines and pods needs root")
		os.Exit(0)
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		os.Exit(errorCode(errors.New("interrupted"), cleanUp()))
	}()
	if err := setUp(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(errorCode(err, cleanUp()))
	}
	code := m.Run()
	if err := cleanUp(); err != nil {
		code = errorCode(err)
	}
	os.Exit(code)
}

func errorCode(errs ...error) int {
	fmt.Fprintln(os.Stderr, "e2e:", errors.Join(errs...))
	return 1
}

func setUp() error {
	if err := sweep(); err != nil {
		return err
	}
	var err error
	if workDir, err = os.MkdirTemp("", fmt.Sprintf("%s%d-", prefix, os.Getpid())); err != nil {
		return err
	}
	binDir, webImage = filepath.Join(workDir, "bin"), filepath.Join(workDir, "web.tar")
	for _, build := range []*exec.Cmd{
		exec.Command("make", "build", "BIN="+binDir),
		exec.Command("go", "build", "-o", binDir+"/", "./scripts/webapp", "./scripts/mkimage"),
	} {
		build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0", "MAKEFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", build, err, out)
		}
	}
	pack := exec.Command(filepath.Join(binDir, "mkimage"), "-o", webImage, "-ref", webRef, filepath.Join(binDir, "webapp"))
	if out, err := pack.CombinedOutput(); err != nil {
		return fmt.Errorf("pack the image: %w\n%s", err, out)
	}
	return nil
}

// clusters are those that are not yet closed.
var (
	clustersMu sync.Mutex
	clusters   []*testCluster
	cleaning   bool // no new ones
)

// cleanUp ends what still runs, and reports what the host would keep.
func cleanUp() error {
	clustersMu.Lock()
	cleaning = true
	open := slices.Clone(clusters)
	clustersMu.Unlock()
	var errs []error
	for _, c := range open {
		errs = append(errs, c.close())
	}
	errs = append(errs, leftOvers(), os.RemoveAll(workDir))
	return errors.Join(errs...)
}

// leftOvers reports mounts below the work directory, processes that name it,
// and cgroups. Those of a dying process may take a moment to go.
func leftOvers() error {
	if workDir == "" {
		return nil
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		found := hostFindings()
		if len(found) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the host keeps %s", strings.Join(found, ", "))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func hostFindings() (found []string) {
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil {
		found = append(found, err.Error())
	} else {
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, workDir) {
				found = append(found, "mount "+strings.TrimSpace(line))
			}
		}
	}
	for _, p := range processes(workDir + "/") {
		if p.pid != os.Getpid() {
			found = append(found, fmt.Sprintf("process %d %s", p.pid, p.command))
		}
	}
	for _, dir := range cgroupDirs(fmt.Sprintf("%s%d-*", prefix, os.Getpid())) {
		found = append(found, "cgroup "+dir)
	}
	return found
}

type process struct {
	pid     int
	command string
}

// processes are the host's whose command line contains the text.
func processes(text string) (found []process) {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is good
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(raw), text) {
			continue // gone meanwhile
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil {
			found = append(found, process{pid, strings.ReplaceAll(string(raw), "\x00", " ")})
		}
	}
	return found
}

// sweep removes what runs left that were killed themselves.
func sweep() error {
	var errs []error
	for _, dir := range cgroupDirs(prefix + "*") {
		if abandoned(dir) {
			errs = append(errs, removeCgroupTree(dir))
		}
	}
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*")) // the pattern is good
	for _, dir := range dirs {
		if abandoned(dir) {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// abandoned says whether the run that made the directory is over.
func abandoned(dir string) bool {
	owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), "-")
	pid, err := strconv.Atoi(owner)
	return err == nil && (pid == os.Getpid() || syscall.Kill(pid, 0) != nil)
}

// cgroupDirs are the roots that match in every hierarchy, of either version.
func cgroupDirs(pattern string) []string {
	v2, _ := filepath.Glob("/sys/fs/cgroup/" + pattern) // the patterns are good
	v1, _ := filepath.Glob("/sys/fs/cgroup/*/" + pattern)
	return append(v2, v1...)
}

// removeCgroupTree removes a tree whose processes are dead or dying.
func removeCgroupTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	errs := []error{err}
	for _, dir := range slices.Backward(dirs) {
		deadline := time.Now().Add(5 * time.Second)
		for {
			err := syscall.Rmdir(dir)
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				break
			}
			if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
				errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return errors.Join(errs...)
}
