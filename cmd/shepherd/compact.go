package main

import (
	"fmt"
	"io"

	"github.com/shepherd-project/shepherd/cluster"
)

// compact rewrites the Raft log of this machine's stopped server.
func compact(s *settings, stdout io.Writer) error {
	before, after, err := cluster.CompactLog(s.DataDir)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "Raft log in %s: %d bytes before, %d bytes after\n", s.DataDir, before, after)
	return err
}
