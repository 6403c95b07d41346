package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/shepherd-project/shepherd/scripts/machines"
)

// host is a machine with a daemon on it.
type host struct {
	*machines.Machine
	args []string
	dir  string

	mu   sync.Mutex
	done chan struct{} // closed when the running daemon was waited for
	cmd  *exec.Cmd     // nil while no daemon runs
}

func (h *host) data() string { return filepath.Join(h.dir, "data") }

// start starts the machine's daemon; its output goes to a file.
func (h *host) start() error {
	log, err := os.OpenFile(filepath.Join(h.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(binDir, "shepherd"), h.args...)
	cmd.Stdout, cmd.Stderr = log, log
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.Start(cmd); err != nil {
		return err
	}
	done := make(chan struct{})
	h.cmd, h.done = cmd, done
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is for the test to judge
	}()
	return nil
}

func (h *host) running() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cmd != nil
}

// kill ends the daemon without a warning, and waits for its end.
func (h *host) kill() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cmd == nil {
		return nil
	}
	if err := h.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-h.done
	h.cmd = nil
	return nil
}

// powerOff ends the whole machine: no packet, no process.
func (h *host) powerOff() error {
	if err := h.PowerOff(); err != nil {
		return err
	}
	return h.kill()
}
