package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// limitDescriptors bounds how many files a running server may have open. What
// is open stays open. It returns the limit as it was.
func limitDescriptors(t *testing.T, s *testServer, limit uint64) (was uint64) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Prlimit(s.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(s.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: old.Max}, nil); err != nil {
		t.Fatal(err)
	}
	return old.Cur
}

// TestDescriptorsExhausted leaves the leader without a file descriptor for
// anything new: it goes on leading over the connections that it has, says what
// is wrong, and takes clients again by itself.
func TestDescriptorsExhausted(t *testing.T) {
	a := bootstrap(t, "a")
	b, c := newServer(t, "b").joinVia(t, a), newServer(t, "c").joinVia(t, a)
	term := a.awaitVoters(3).Term
	if err := created(b.post("before")); err != nil {
		t.Fatal(err)
	}
	was := limitDescriptors(t, a, 3)
	begun := time.Now()
	tried := make(chan error, 1)
	go func() { tried <- created(a.post("waits")) }() // it waits for the server to accept it
	eventually(t, 15*time.Second, "the server without descriptors says so", func() error {
		if !strings.Contains(a.out.String(), "too many open files") {
			return errors.New("no word of it")
		}
		return nil
	})
	for i := range 20 {
		for _, s := range []*testServer{b, c} {
			if code, body, err := s.post(fmt.Sprintf("meanwhile-%s-%d", s.name, i)); err != nil || code != http.StatusCreated {
				t.Fatalf("a write through %s: %d %s %v", s.name, code, body, err)
			}
		}
	}
	a.mustRun()
	if st, err := b.status(); err != nil || st.Leader != "a" || st.Term != term {
		t.Errorf("leader %q in term %d, was a in term %d: %v", st.Leader, st.Term, term, err)
	}
	t.Logf("without descriptors for %v", time.Since(begun).Round(time.Millisecond))
	limitDescriptors(t, a, was)
	if err := <-tried; err != nil {
		t.Logf("the client that waited: %v", err) // it may have lost its patience
	}
	eventually(t, 10*time.Second, "a write through the server that has descriptors again", func() error { return created(a.post("after")) })
	a.awaitVoters(3)
}
