package shim

import (
	"fmt"
	"syscall"
)

// State is where a container is in its life.
type State string

// The states of a container.
const (
	Created State = "created"
	Running State = "running"
	Exited  State = "exited"
	// Gone takes back a Created that never ran: only events carry it.
	Gone State = "gone"
)

// Mount is one file system of a container.
//
// Type "bind" attaches the host's file or directory Source, with everything
// mounted below it; "tmpfs" a new one of Size bytes (0 = no limit but memory).
// Target is absolute, resolved inside the container's root (symbolic links
// cannot lead out of it) and created when missing.
type Mount struct {
	Type     string `json:"type"`
	Source   string `json:"source,omitempty"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	NoExec   bool   `json:"noExec,omitempty"`
	Size     int64  `json:"size,omitempty"`
	Mode     uint32 `json:"mode,omitempty"` // tmpfs: permissions of its root, default 1777
}

// Rlimit is one resource limit. Type is setrlimit(2)'s name. Values above what
// the machine allows are lowered to that.
type Rlimit struct {
	Type string `json:"type"`
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

// Winsize is the size of a terminal, in characters.
type Winsize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// StepError says which step of a container's start failed.
type StepError struct {
	Step    string        `json:"step"`    // such as "exec", "mount /data"
	Message string        `json:"message"` // the cause, for people
	Errno   syscall.Errno `json:"errno,omitempty"`
}

// Error implements error.
func (e *StepError) Error() string { return fmt.Sprintf("%s: %s", e.Step, e.Message) }

// Unwrap gives the kernel's error, so that errors.Is(err, fs.ErrNotExist) works.
func (e *StepError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}
