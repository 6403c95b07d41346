package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Names of the files in a pod's directory and in a container's.
const (
	SocketName = "sock"
	RecordName = "shim.json"
	StateName  = "state.json"
	ExitName   = "exit.json"
	ShmName    = "shm"
)

// WriteRecord writes v as JSON, whole or not at all.
func WriteRecord(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(fmt.Errorf("write record: %w", err), os.Remove(tmp))
	}
	return nil
}

// ReadRecord reads what WriteRecord wrote.
func ReadRecord(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read record: %w", err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read record %s: %w", filepath.Base(path), err)
	}
	return nil
}

// StartTime reads when a process started, in clock ticks since boot. With the
// boot ID and the PID it names a process for good.
func StartTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("start time: %w", err)
	}
	// The second field, the name in parentheses, may hold anything.
	i := strings.LastIndexByte(string(b), ')')
	fields := strings.Fields(string(b[i+1:]))
	if i < 0 || len(fields) < 20 {
		return 0, fmt.Errorf("start time of %d: unknown format", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}
