package shim

import (
	"time"

	"github.com/shepherd-project/shepherd/agent/runtime/cgroup"
)

// PodSpec is what a shim needs to know about its pod.
type PodSpec struct {
	UID      string            `json:"uid"`
	Dir      string            `json:"dir"` // RUN/pods/UID: sock and records
	BootID   string            `json:"bootID"`
	Hostname string            `json:"hostname,omitempty"` // "" leaves the UTS namespace alone
	Loopback bool              `json:"loopback,omitempty"` // bring up lo
	Sysctls  map[string]string `json:"sysctls,omitempty"`
	ShmBytes int64             `json:"shmBytes,omitempty"` // 0: no /dev/shm of the pod
	SharePID bool              `json:"sharePID,omitempty"`
	Cgroup   cgroup.Group      `json:"cgroup"` // the shim's own
}

// PIDMode says whose PID namespace a container lives in.
type PIDMode string

// The PID modes.
const (
	PIDPrivate PIDMode = ""
	PIDPod     PIDMode = "pod"
	PIDHost    PIDMode = "host"
)

// Process is what runs: the part that a container and an exec share.
type Process struct {
	Args            []string `json:"args"`
	Env             []string `json:"env,omitempty"`
	Cwd             string   `json:"cwd,omitempty"`
	User            string   `json:"user,omitempty"`
	Groups          []uint32 `json:"groups,omitempty"`
	TTY             bool     `json:"tty,omitempty"`
	Size            Winsize  `json:"size,omitzero"`
	Capabilities    uint64   `json:"capabilities"` // bit n = capability n
	NoNewPrivileges bool     `json:"noNewPrivileges,omitempty"`
	Seccomp         []byte   `json:"seccomp,omitempty"` // array of struct sock_filter
	Rlimits         []Rlimit `json:"rlimits,omitempty"`
	OOMScoreAdj     int      `json:"oomScoreAdj,omitempty"`
}

// ContainerSpec is one attempt at running a container, fully resolved.
type ContainerSpec struct {
	Name    string `json:"name"`
	Attempt int    `json:"attempt"`
	Process

	Layers        []string     `json:"layers"` // lower directories, topmost first
	Upper         string       `json:"upper"`
	Work          string       `json:"work"`
	Rootfs        string       `json:"rootfs"` // an empty directory to mount on
	Mounts        []Mount      `json:"mounts,omitempty"`
	ReadOnlyRoot  bool         `json:"readOnlyRoot,omitempty"`
	Privileged    bool         `json:"privileged,omitempty"`
	MaskedPaths   []string     `json:"maskedPaths,omitempty"`
	ReadOnlyPaths []string     `json:"readOnlyPaths,omitempty"`
	PIDMode       PIDMode      `json:"pidMode,omitempty"`
	StopSignal    int          `json:"stopSignal"`
	Cgroup        cgroup.Group `json:"cgroup"`

	StateDir     string        `json:"stateDir"`
	LogPath      string        `json:"logPath"`
	LogMaxBytes  int64         `json:"logMaxBytes"`
	LogMaxFiles  int           `json:"logMaxFiles"`
	StartTimeout time.Duration `json:"startTimeout"`
}

// Status is the state of a container. It is also the record of its exit on disk.
type Status struct {
	Name       string    `json:"name"`
	Attempt    int       `json:"attempt"`
	State      State     `json:"state"`
	PID        int       `json:"pid,omitempty"`
	ExitCode   int       `json:"exitCode"`
	Signal     int       `json:"signal,omitempty"`
	OOMKills   uint64    `json:"oomKills,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	LogDropped int64     `json:"logDropped,omitempty"` // bytes that could not be written
	StartedAt  time.Time `json:"startedAt,omitzero"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
}

// OOMKilled tells whether the container failed after it ran out of memory.
func (s *Status) OOMKilled() bool { return s.OOMKills > 0 && s.ExitCode != 0 }

// Reasons of an exit.
const (
	ReasonCompleted = "Completed"
	ReasonError     = "Error"
	ReasonOOMKilled = "OOMKilled"
	ReasonUnknown   = "ContainerStatusUnknown"
)

// Record says which process a shim is: the PID counts only together with the
// boot and the start time.
type Record struct {
	Version   int    `json:"version"`
	UID       string `json:"uid"`
	BootID    string `json:"bootID"`
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"` // clock ticks since boot, /proc/PID/stat field 22
}

// Reply answers a request.
type Reply struct {
	Error      *Error   `json:"error,omitempty"`
	Pod        *Record  `json:"pod,omitempty"`
	Containers []Status `json:"containers,omitempty"`
}

// Code says of which kind an Error is.
type Code string

// The codes.
const (
	CodeExists     Code = "exists"
	CodeNotFound   Code = "notFound"
	CodeNotRunning Code = "notRunning"
	CodeStep       Code = "step" // the container is at fault: Step is set
	CodeInternal   Code = "internal"
)

// Error is a request's failure.
type Error struct {
	Code    Code       `json:"code"`
	Message string     `json:"message"`
	Step    *StepError `json:"step,omitempty"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// StopRequest asks for a container's end. A second one may only shorten the grace.
type StopRequest struct {
	Name  string        `json:"name"`
	Grace time.Duration `json:"grace"`
}

// SignalRequest sends a signal to a container's first process.
type SignalRequest struct {
	Name   string `json:"name"`
	Signal int    `json:"signal"`
}

// ExecSpec is one more process in a running container.
type ExecSpec struct {
	Container string `json:"container"`
	Process
	Stdin bool `json:"stdin,omitempty"`
}

// ExecExit says how an exec ended.
type ExecExit struct {
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"`
}
