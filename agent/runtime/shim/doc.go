// Package shim is the lean process that owns one pod's containers, and the
// stages that it re-executes itself as. It links little on purpose: a shim runs
// for every pod, and every container start goes through its binary.
//
// # Life
//
// The agent starts the shim inside the pod's net, ipc and uts namespaces, moves
// it into the pod's cgroup, and sends Create over descriptor 3. The shim then
// listens on its socket, so that the next agent finds it. It lives until Shutdown.
//
// # Frames
//
// Agent and shim exchange frames over a stream socket:
//
//	 0        4         5      6          8            16
//	| length | version | type | reserved | request ID | payload (JSON, or bytes of a stream)
//
// length counts what follows it. An answer has the ID of its request; what the
// shim sends by itself has ID 0. A connection serves requests side by side, except
// that one which sends Exec carries that process's streams and nothing else.
//
//	agent                              shim
//	Create{PodSpec} ----------------->        (first frame on descriptor 3 only)
//	Hello --------------------------->
//	       <-------------------------- Reply{Pod, Containers}
//	Start{ContainerSpec} ------------>
//	       <-------------------------- Reply{Error?}      executed, or why not
//	Stop{Name, Grace}, Signal{...} -->
//	       <-------------------------- Reply{Error?}      Stop: when it has exited
//	       <-------------------------- Event{Status}      at every change of a container
//	Exec{ExecSpec} ------------------>
//	       <-------------------------- Reply{Error?}
//	Stdin, CloseStdin, Resize ------->
//	       <-------------------------- Stdout, Stderr
//	       <-------------------------- ExecExit{Code}
//	Shutdown ------------------------>
//	       <-------------------------- Reply              then the shim is gone
//
// # Start of a container
//
//	shim                               init (new pid and mount namespace)
//	clone --------------------------->
//	moves it into its cgroup
//	Init{ContainerSpec} ------------->
//	                                   mounts, pivots, finds user and program
//	       <-------------------------- Terminal (a PTY's descriptor; with TTY only)
//	       <-------------------------- Ready
//	writes the state record
//	Go ------------------------------>
//	                                   capabilities, seccomp, execve
//	       <-------------------------- end of file: execve closed the socket
//	       <-------------------------- Failed{StepError}, instead, at any time
package shim
