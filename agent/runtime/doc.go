// Package runtime runs pods through namespace syscalls. One lean process per
// pod, the shim, owns the pod's containers and outlives the agent.
package runtime
