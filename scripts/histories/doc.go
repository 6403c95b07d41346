// Package histories proves, or refutes, that a cluster keeps what it promises
// to those who write and read through any of its servers while these die, hang
// and lose one another: that every object is linearizable, that an acknowledged
// write is there once and a refused one never, that lists show one revision,
// and that watches show every revision, in order, once, wherever they go on.
//
// A Run has clients and watchers of its own, which talk HTTP to the replicas
// that they are given: simulated ones or real processes. What they were told is
// checked in the end by Check. Answers that do not tell whether a write has
// happened (a broken connection, 504) count as perhaps: now, later or never.
package histories
