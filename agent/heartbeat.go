package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/shepherd-project/shepherd/agent/upstream"
	"github.com/shepherd-project/shepherd/api/wire"
)

// heartbeat tells the servers that this machine lives. It has a transport, and
// so a connection, of its own: a large answer to another loop is never in its
// way.
type heartbeat struct {
	transport http.RoundTripper
	interval  time.Duration
	logger    hclog.Logger
	bootID    string
	// acked is called after each acknowledged heartbeat; it must not block.
	acked func()

	sequence uint64
	lease    atomic.Int64 // CLOCK_BOOTTIME of the last acknowledged heartbeat's sending, in ns; 0 = none
}

// run beats until ctx ends. After a failure it tries again soon: the interval
// is for healthy times.
func (h *heartbeat) run(ctx context.Context) {
	again := retry{base: 500 * time.Millisecond, limit: h.interval}
	var failing bool
	for ctx.Err() == nil {
		wait := h.interval
		var err error
		guard(h.logger, "heartbeat", func() {
			err = errors.New("panic")
			err = h.beat(ctx)
		})
		switch {
		case err == nil:
			if failing {
				h.logger.Info("heartbeats are acknowledged again")
			}
			failing = false
			again.reset()
			h.acked()
		case ctx.Err() == nil:
			if !failing {
				h.logger.Warn("heartbeat not acknowledged", "error", err)
			}
			failing = true
			wait = again.next()
		}
		pause(ctx, wait)
	}
}

// beat sends one heartbeat, to as many servers as it takes.
func (h *heartbeat) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(upstream.WithRetry(ctx), 2*h.interval)
	defer cancel()
	h.sequence++
	sent, err := bootTime()
	if err != nil {
		return err
	}
	var ack wire.HeartbeatAck
	beat := wire.Heartbeat{Sequence: h.sequence, BootID: h.bootID}
	if err := call(ctx, h.transport, http.MethodPost, wire.PathHeartbeat, beat, &ack); err != nil {
		return err
	}
	if ack.Sequence != h.sequence {
		return fmt.Errorf("heartbeat %d was answered as %d", h.sequence, ack.Sequence)
	}
	h.lease.Store(int64(sent))
	return nil
}

// bootTime is the time since the machine was started, suspension included: no
// wall clock's jump changes it.
func bootTime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, fmt.Errorf("clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}

// readBootID identifies this run of the machine.
func readBootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot ID: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
