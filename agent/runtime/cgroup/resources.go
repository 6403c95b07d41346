// Package cgroup makes, limits, reads and kills control groups by writing
// their files, on the unified hierarchy (v2) and on split ones (v1).
package cgroup

import "time"

// Resources are the limits and weights of a group; a zero field means none.
type Resources struct {
	MemoryLimit int64 `json:"memoryLimit,omitempty"` // bytes; swap is never added to it
	CPURequest  int64 `json:"cpuRequest,omitempty"`  // thousandths of a CPU: the weight under contention
	CPULimit    int64 `json:"cpuLimit,omitempty"`    // thousandths of a CPU: the ceiling
	PidsLimit   int64 `json:"pidsLimit,omitempty"`   // processes and threads
	OOMScoreAdj int   `json:"oomScoreAdj,omitempty"` // of its processes, -1000..1000
}

// Stats are the counters of a group at one time.
type Stats struct {
	Time             time.Time
	CPUUsage         time.Duration // CPU time used since the start
	MemoryUsage      uint64        // bytes, page cache included
	MemoryWorkingSet uint64        // bytes, without inactive page cache
	MemoryLimit      uint64        // bytes; 0 = none
	Pids             uint64
	OOMKills         uint64 // processes killed for memory since the start
}
