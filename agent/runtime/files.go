package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/shepherd-project/shepherd/agent/runtime/shim"
	"golang.org/x/sys/unix"
)

// numbers lists the entries of dir that are a number and suffix, ascending. A
// missing directory is empty.
func numbers(dir, suffix string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if n, err := strconv.Atoi(name); ok && err == nil && n >= 0 {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

// removeLog removes a log file and its rotated ones.
func removeLog(path string) error {
	rotated, err := shim.RotatedLogs(path)
	if err != nil {
		return err
	}
	errs := []error{ignoreMissing(os.Remove(path))}
	for _, n := range rotated {
		errs = append(errs, ignoreMissing(os.Remove(shim.RotatedLog(path, n))))
	}
	return errors.Join(errs...)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// unmountBelow unmounts everything mounted below dir, the last mounted first.
func unmountBelow(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	var points []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		point := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4])
		if strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	var errs []error
	for _, p := range slices.Backward(points) {
		if err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			errs = append(errs, &fs.PathError{Op: "unmount", Path: p, Err: err})
		}
	}
	return errors.Join(errs...)
}
