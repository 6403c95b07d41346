package runtime

import (
	"errors"
	"io"
	"time"

	"github.com/shepherd-project/shepherd/agent/runtime/cgroup"
	"github.com/shepherd-project/shepherd/agent/runtime/shim"
)

var (
	// ErrNotFound: no such pod or container on this machine.
	ErrNotFound = errors.New("not found")
	// ErrExists: the pod is alive already, or that attempt of the container exists.
	ErrExists = errors.New("already exists")
	// ErrPodDead: the pod's shim is gone; only RemovePod and CreatePod make sense.
	ErrPodDead = errors.New("the pod is not running")
	// ErrNotRunning: the container has not started or has ended.
	ErrNotRunning = errors.New("container is not running")
	// ErrInvalid: the request cannot be carried out as written, now or later.
	ErrInvalid = errors.New("invalid")
	// ErrClosed: the Runtime was closed.
	ErrClosed = errors.New("runtime is closed")
)

// StartError says at which step a container could not be started. It is found
// with errors.As in the error of StartContainer. Errno is the kernel's, or 0.
type StartError = shim.StepError

// Resources are limits and weights; a zero field means none.
type Resources = cgroup.Resources

// Mount is one more file system of a container.
type Mount = shim.Mount

// Rlimit is one resource limit, as setrlimit(2) names it ("RLIMIT_NOFILE").
type Rlimit = shim.Rlimit

// ContainerState is where a container is in its life.
type ContainerState = shim.State

const (
	// Created: its processes are being set up, no code of the image has run.
	Created = shim.Created
	// Running: the image's program was executed and has not ended.
	Running = shim.Running
	// Exited: all its processes are gone; ExitCode and FinishedAt are final.
	Exited = shim.Exited
)

// PodConfig describes a pod: what its containers share.
type PodConfig struct {
	UID       string // DNS label characters; names every directory and cgroup
	Namespace string
	Name      string
	Hostname  string // default: Name

	// NetNS is the path of the network namespace; "" makes a new one with
	// only the loopback device, which lives as long as the pod.
	NetNS string
	// HostNetwork, HostIPC, HostPID share the machine's own namespaces.
	HostNetwork, HostIPC, HostPID bool
	// SharePIDNamespace gives all containers of the pod one PID namespace.
	SharePIDNamespace bool

	Hosts      string            // content of /etc/hosts; "" writes a minimal one
	ResolvConf string            // content of /etc/resolv.conf; "" copies the machine's
	Sysctls    map[string]string // namespaced ones only: net.*, kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.*
	ShmBytes   int64             // size of the shared /dev/shm; default 64 MiB
	Resources  Resources         // limits of the whole pod
	Labels     map[string]string // kept and returned, never read
}

// ContainerConfig describes one attempt at running a container.
type ContainerConfig struct {
	Name    string
	Attempt int // counts restarts; names the log file. An attempt runs once

	RootLayers []string // directories of the image, the topmost first
	Args       []string // Args[0] is looked up in the container's PATH
	Env        []string // KEY=VALUE; PATH, HOSTNAME, HOME (and TERM) are added when missing
	Cwd        string   // default "/"; created when missing
	User       string   // "user", "uid", "user:group", "uid:gid" as in an image; "" is root
	Groups     []uint32 // supplementary groups besides those of /etc/group

	Mounts       []Mount
	Resources    Resources
	ReadOnlyRoot bool
	TTY          bool

	CapAdd, CapDrop          []string // names with or without CAP_, or ALL
	Privileged               bool     // all capabilities and devices, no seccomp, nothing masked
	AllowPrivilegeEscalation bool     // false sets no_new_privs
	SeccompUnconfined        bool
	UnmaskedProc             bool // securityContext.procMount: Unmasked
	Rlimits                  []Rlimit
	StopSignal               string // default SIGTERM
	Labels                   map[string]string
}

// PodStatus is a copy of what is known about a pod.
type PodStatus struct {
	UID, Namespace, Name string
	PID                  int  // of the shim; 0 when it is not alive
	Alive                bool // the shim answers; false: call RemovePod or CreatePod
	CreatedAt            time.Time
	NetNS                string // as configured
	Labels               map[string]string
	Containers           []ContainerStatus // the latest attempt of each, by name
}

// ContainerStatus is the state of the latest attempt of a container.
type ContainerStatus struct {
	Name                  string
	Attempt               int
	State                 ContainerState
	PID                   int    // in the machine's PID namespace; 0 when exited
	ExitCode              int    // 128+Signal when killed by a signal
	Signal                int    // 0 when it exited by itself
	OOMKilled             bool   // it failed after the kernel killed one of its processes for memory
	OOMKills              uint64 // processes killed for memory, as known at its exit
	Reason                string // "Completed", "Error", "OOMKilled", or "ContainerStatusUnknown" when nobody saw its end
	StartedAt, FinishedAt time.Time
	Labels                map[string]string
}

// LogOptions select what Logs returns. The zero value is all of the latest attempt.
type LogOptions struct {
	Follow     bool
	TailLines  *int64    // nil = all, 0 = none but what follows
	SinceTime  time.Time // zero = all
	Timestamps bool
	Previous   bool  // the attempt before the latest
	Attempt    *int  // that attempt; wins over Previous
	LimitBytes int64 // 0 = no limit
}

// Stats are the counters of one container at one time.
type Stats = cgroup.Stats

// ExecConfig is one more process in a running container.
type ExecConfig struct {
	Args, Env []string // Env is added to the container's own
	Cwd, User string   // default: the container's own
	TTY       bool
	Stdin     io.Reader // nil = /dev/null
	Stdout    io.Writer // nil = discarded
	Stderr    io.Writer // nil = discarded; unused with TTY
	Resize    <-chan Winsize
}

// Winsize is the size of a terminal, in characters.
type Winsize = shim.Winsize
