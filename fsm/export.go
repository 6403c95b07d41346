package fsm

import "io"

// Export writes the view as a snapshot that holds no outcomes of requests:
// what a backup keeps. Restore reads it. The state may change meanwhile.
func (v *View) Export(w io.Writer) error { return writeSnapshot(w, v, nil) }

// Term is the term of the last entry applied.
func (v *View) Term() uint64 { return v.term }
