package cluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
)

var (
	errSilent   = errors.New("no answer to pings")
	errStranger = errors.New("another server answers at its address")
	errMute     = errors.New("this server has given up")
)

// watch keeps asking one peer whether it is there, over one connection after
// another, until ctx ends.
func (d *detector) watch(ctx context.Context, p *peer) {
	t := &d.node.timing
	for wait := time.Duration(0); ctx.Err() == nil && !d.muted(); {
		begun := time.Now()
		answered, err := d.converse(ctx, p)
		if ctx.Err() != nil {
			return
		}
		d.lost(p, err)
		// At once after a conversation, and then once more: a listener that is
		// about to close accepts a connection and resets it.
		switch {
		case answered && time.Since(begun) > t.Ping:
			wait = 0
			continue
		case wait == 0:
			wait = t.Ping / 8
		default:
			wait = min(2*wait, 4*t.Ping)
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			wait = 4 * t.Ping
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// lost draws the conclusion from the end of a conversation, or from one that
// did not come about.
func (d *detector) lost(p *peer, err error) {
	refused := errors.Is(err, syscall.ECONNREFUSED)
	d.mu.Lock()
	was, quiet := p.state, time.Since(p.heard)
	if p.refused != refused {
		p.refused = refused
		d.changedLocked()
	}
	d.mu.Unlock()
	switch {
	case was == peerUnknown:
	case refused:
		d.set(p, peerDead, err.Error())
	case was == peerDead:
	case was != peerUp && quiet >= d.node.timing.Silence, errors.Is(err, errSilent):
		d.set(p, peerSilent, err.Error())
	case was == peerUp:
		d.set(p, peerDoubted, err.Error())
	}
}

// converse opens a connection and sends pings on it until it breaks or the peer
// has been silent for too long. It reports whether the peer ever answered.
func (d *detector) converse(ctx context.Context, p *peer) (answered bool, err error) {
	opening, cancel := context.WithTimeout(ctx, d.patience(p))
	defer cancel()
	conn, err := d.node.cfg.DialLink(opening, string(p.address))
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends what waits on it
	defer stop()
	defer conn.Close() //nolint:errcheck // it is being thrown away
	if deadline, ok := opening.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return false, err
		}
	}
	in, err := upgrade(conn, string(p.address))
	if err != nil {
		return false, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return false, err
	}
	broken := make(chan error, 1)
	first, ended := make(chan struct{}), make(chan struct{})
	if !d.node.tasks.run(func() {
		defer close(ended)
		broken <- d.readAnswers(p, in, first)
	}) {
		return false, ErrStopped
	}
	err = d.ping(ctx, p, conn, broken)
	_ = conn.Close() // ends the reader, whose last answer must not come after the conclusion
	<-ended
	select {
	case <-first:
		return true, err
	default:
		return false, fmt.Errorf("before the first answer: %w", err)
	}
}

// leaderSince is the peer that says it leads in that term or a later one, the
// latest of them, with its term; empty if none does.
func (d *detector) leaderSince(term uint64) (leader raft.ServerID, its uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, p := range d.peers {
		r := p.report
		if r == nil || p.state != peerUp || time.Since(p.reported) >= d.node.timing.Silence {
			continue
		}
		if raft.RaftState(r.State) == raft.Leader && r.Term >= term {
			leader, term = id, r.Term
		}
	}
	return leader, term
}

// patience is how long opening a connection may take: no longer than until the
// peer counts as silent, as long as it does not.
func (d *detector) patience(p *peer) time.Duration {
	t := &d.node.timing
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.state == peerUp || p.state == peerDoubted {
		return max(t.Silence-time.Since(p.heard), t.Ping)
	}
	return max(t.Transport/2, t.Silence)
}

// ping asks until the connection is broken or silent.
func (d *detector) ping(ctx context.Context, p *peer, conn net.Conn, broken <-chan error) error {
	t := &d.node.timing
	tick := time.NewTicker(t.Ping)
	defer tick.Stop()
	last := time.Now()
	begun := last
	for {
		if d.muted() {
			return errMute
		}
		if err := conn.SetWriteDeadline(time.Now().Add(t.Silence)); err != nil {
			return err
		}
		if err := writeReport(conn, d.report()); err != nil {
			return fmt.Errorf("send ping: %w", err)
		}
		select {
		case <-tick.C:
		case <-p.ping:
		case err := <-broken:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		now := time.Now()
		if now.Sub(last) > t.Silence/2 {
			d.excuse(now.Sub(last))
		}
		last = now
		d.mu.Lock()
		quiet := now.Sub(p.heard)
		d.mu.Unlock()
		if quiet = min(quiet, now.Sub(begun)); quiet >= t.Silence {
			return fmt.Errorf("%w for %v", errSilent, quiet.Round(time.Millisecond))
		}
	}
}

// readAnswers reads until the connection ends. first is closed by the first answer.
func (d *detector) readAnswers(p *peer, in io.Reader, first chan struct{}) error {
	for once := true; ; once = false {
		r, err := readReport(in)
		if err != nil {
			return fmt.Errorf("wait for answer: %w", err)
		}
		if r.ID != string(p.id) {
			return fmt.Errorf("%w: %s", errStranger, r.ID)
		}
		d.answered(p, r)
		if once {
			close(first)
		}
	}
}

// upgrade turns the connection into a stream of reports.
func upgrade(conn net.Conn, address string) (io.Reader, error) {
	req, err := http.NewRequest(http.MethodGet, "http://"+address+wire.LinkWatch, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", wire.WatchProtocol)
	if err := req.Write(conn); err != nil {
		return nil, fmt.Errorf("ask for watch: %w", err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, req)
	if err != nil {
		return nil, fmt.Errorf("ask for watch: %w", err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, errors.Join(fmt.Errorf("ask for watch: %s", resp.Status), resp.Body.Close())
	}
	return in, nil
}

// linkWatch answers each of a peer's reports with one of this server's.
func (n *Node) linkWatch(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != wire.WatchProtocol {
		http.Error(w, "this is for "+wire.WatchProtocol, http.StatusUpgradeRequired)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "cannot upgrade: "+err.Error(), http.StatusHTTPVersionNotSupported)
		return
	}
	defer conn.Close() //nolint:errcheck // its end is the end of the conversation
	if err := n.answerReports(conn, buffered.Reader); err != nil {
		n.logger.Debug("a peer's watch ended", "remote", conn.RemoteAddr(), "reason", err)
	}
}

func (n *Node) answerReports(conn net.Conn, in io.Reader) error {
	if err := conn.SetDeadline(time.Now().Add(n.timing.Transport)); err != nil {
		return err
	}
	accept := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + wire.WatchProtocol + "\r\n\r\n"
	if _, err := io.WriteString(conn, accept); err != nil {
		return err
	}
	for n.ctx.Err() == nil {
		// The other side gives up long before.
		if err := conn.SetDeadline(time.Now().Add(max(n.timing.Transport, 4*n.timing.Silence))); err != nil {
			return err
		}
		report, err := readReport(in)
		if err != nil {
			return err
		}
		if n.detector.muted() {
			return errMute
		}
		n.detector.learn(report)
		if err := writeReport(conn, n.detector.report()); err != nil {
			return err
		}
	}
	return ErrStopped
}

// writeReport writes a report in one piece.
func writeReport(w io.Writer, r *wire.WatchReport) error {
	body := wire.EncodeWatchReport(r)
	if len(body) > wire.MaxReport {
		return fmt.Errorf("report of %d bytes", len(body))
	}
	frame := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(body)), uint16(len(body)))
	_, err := w.Write(append(frame, body...))
	return err
}

func readReport(r io.Reader) (*wire.WatchReport, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	return wire.DecodeWatchReport(body)
}
