package api

import (
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
	"sync"
)

// lockedSource makes a source of randomness safe for concurrent use. UIDs,
// name suffixes and addresses are drawn from it before a command is proposed.
type lockedSource struct {
	mu sync.Mutex
	r  *rand.Rand // guarded by mu; nil: the system's randomness
}

// Uint64 implements resource.Source.
func (s *lockedSource) Uint64() uint64 {
	if s.r == nil {
		var b [8]byte
		_, _ = crand.Read(b[:]) // never fails: crypto/rand ends the process instead
		return binary.LittleEndian.Uint64(b[:])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.Uint64()
}

// intN returns a number in [0, n). The bias of the modulo does not matter for
// picking a first candidate.
func (s *lockedSource) intN(n int) int { return int(s.Uint64() % uint64(n)) }
