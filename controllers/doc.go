// Package controllers holds the loops that only the leader runs. Each one is a
// ticker, a stop channel and a reconcile that looks at the whole state (Loop);
// the Manager starts a fresh set for each term of leadership and waits for the
// old set before it does.
//
// What a controller decides is a pure function of a world (the cluster time, an
// immutable view, a seeded random source) to commands: a planner. Every command
// names what its decision depended on, so a decision that was overtaken is
// refused by the state machine and planned again from a newer view.
package controllers
