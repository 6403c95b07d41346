package agent

import "sync"

// bounded keeps the beginning of what is written to it. It is safe for
// concurrent use.
type bounded struct {
	limit int

	mu   sync.Mutex
	data []byte
}

// Write keeps what there is place for and takes the rest as well.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, p[:min(len(p), max(b.limit-len(b.data), 0))]...)
	return len(p), nil
}

func (b *bounded) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.data)
}
