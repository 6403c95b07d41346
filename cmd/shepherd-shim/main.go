// Command shepherd-shim is the process that owns one pod's containers. The
// agent starts it; see package shim.
package main

import (
	"os"
	"runtime"

	"github.com/shepherd-project/shepherd/agent/runtime/shim"
)

// What a stage does to its own thread (namespaces, capabilities, seccomp) must
// happen on the main one.
func init() { runtime.LockOSThread() }

func main() { os.Exit(shim.Main()) }
