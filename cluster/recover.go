package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/cluster/seal"
	"github.com/shepherd-project/shepherd/fsm"
)

// probeTimeout bounds asking the other servers whether they are really lost.
const probeTimeout = 3 * time.Second

// RecoverConfig is what a recovery works on.
type RecoverConfig struct {
	DataDir string
	Store   fsm.Config
	Now     time.Time
	// AcceptDifference recovers also from a server that was found to differ
	// from the others: for who has no other one and no backup.
	AcceptDifference bool
	Logger           hclog.Logger
}

// ErrQuorum is wrapped when a recovery is refused because the cluster needs none.
var ErrQuorum = errors.New("the quorum is not lost")

// Recovery says what a recovery has done.
type Recovery struct {
	Server wire.Server
	// Index and Term are those of the last entry in this server's log. All of
	// it was kept, acknowledged or not.
	Index, Term uint64
	// Newest is the cluster time of the newest write that was kept.
	Newest   time.Time
	Epoch    uint64
	Revision uint64
	// Left are the other members, whose logs do not count any more.
	Left []wire.Server
}

// Recover makes a stopped server, one that lost the majority it needs, the
// only member of its cluster, in a new restore epoch. Everything in its log is
// kept; what was acknowledged by the lost servers without it is lost. It
// refuses, with ErrQuorum and before it changes anything, when enough servers
// answer to go on without it. So it does, with ErrDiffers, where the majority
// found this server's state to be wrong. Cut off midway, it can be run again.
func Recover(ctx context.Context, c RecoverConfig) (_ *Recovery, err error) {
	h, err := OpenHome(c.DataDir)
	if errors.Is(err, ErrInUse) {
		return nil, fmt.Errorf("stop the server first: %w", err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if h.Empty() || !h.record.Opened {
		return nil, fmt.Errorf("there is no server to recover in %s; is --data-dir that of a server?", c.DataDir)
	}
	cfg := DefaultConfig()
	cfg.ID, cfg.DataDir, cfg.Logger = h.ID(), c.DataDir, c.Logger
	files, err := openStorage(&cfg, c.Logger)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	r := &recovery{cfg: cfg, files: files, store: fsm.New(c.Store), keys: h.Keys, out: Recovery{Server: wire.Server{ID: h.ID(), Name: h.Name(), Address: h.record.Address}}}
	if err := r.readLog(); err != nil {
		return nil, fmt.Errorf("read the log in %s: %w", c.DataDir, err)
	}
	if err := r.checkLost(ctx, h, c.Now); err != nil {
		return nil, err
	}
	differs, err := differsAs(files.stable)
	switch {
	case err != nil:
		return nil, err
	case differs != "" && !c.AcceptDifference:
		return nil, fmt.Errorf("%w, so a cluster made of it would hold wrong objects (what was found: %s). Recover another server that is left, "+
			"or restore a backup; if there is neither, --accept-different-state recovers this one", ErrDiffers, differs)
	}
	var left []string
	for _, s := range r.out.Left {
		left = append(left, s.ID)
	}
	if err := h.leaveBehind(left); err != nil {
		return nil, err
	}
	if err := r.run(c.Now); err != nil {
		return nil, fmt.Errorf("recover the log in %s: %w", c.DataDir, err)
	}
	if differs != "" { // there is nobody left to differ from
		if err := files.stable.Set(keyDiffers, nil); err != nil {
			return nil, fmt.Errorf("note that this server's state counts again in %s: %w", c.DataDir, err)
		}
	}
	return &r.out, nil
}

type recovery struct {
	cfg   Config
	files *storage
	store *fsm.Store
	keys  *seal.Ring
	conf  raft.Configuration // the latest in the log
	out   Recovery
}

// readLog finds the last entry and the latest configuration.
func (r *recovery) readLog() error {
	snapshots, err := r.files.snapshots.List()
	if err != nil {
		return err
	}
	if len(snapshots) > 0 {
		r.out.Index, r.out.Term, r.conf = snapshots[0].Index, snapshots[0].Term, snapshots[0].Configuration
	}
	last, err := r.files.log.LastIndex()
	if err != nil {
		return err
	}
	for i := r.out.Index + 1; i <= last; i++ {
		var e raft.Log
		if err := r.files.log.GetLog(i, &e); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		r.out.Index, r.out.Term = e.Index, e.Term
		if e.Type == raft.LogConfiguration {
			r.conf = raft.DecodeConfiguration(e.Data)
		}
	}
	if r.out.Index == 0 {
		return errors.New("it is empty")
	}
	for _, s := range r.conf.Servers {
		if string(s.ID) != r.out.Server.ID {
			r.out.Left = append(r.out.Left, wire.Server{ID: string(s.ID), Name: ServerName(string(s.ID)), Address: string(s.Address)})
		}
	}
	return nil
}

// checkLost asks the other members whether they can go on, with this server or
// without it.
func (r *recovery) checkLost(ctx context.Context, h *Home, now time.Time) error {
	if len(r.out.Left) == 0 {
		return fmt.Errorf("%w: this server is the only member of its cluster; start it", ErrQuorum)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	client := pki.NewVerifier(h.CA, time.Now).ClientConfig(h.Admin)
	type answer struct {
		server wire.Server
		status wire.ClusterStatus
		err    error
	}
	answers := make(chan answer, len(r.out.Left))
	for _, s := range r.out.Left {
		go func() {
			a := answer{server: s}
			a.err = getOnce(ctx, client.Clone(), http.MethodGet, s.Address, wire.PathStatus, &a.status)
			answers <- a
		}()
	}
	votes := map[string]bool{r.out.Server.ID: true}
	var alive []string
	for range r.out.Left {
		a := <-answers
		switch {
		case a.err != nil:
		case a.status.Leader != "":
			return fmt.Errorf("%w: %s at %s says that %s leads in term %d; start this server", ErrQuorum, a.server.Name, a.server.Address, a.status.Leader, a.status.Term)
		default:
			votes[a.server.ID] = true
			alive = append(alive, a.server.Name+" at "+a.server.Address)
		}
	}
	have := 0
	all := voters(r.conf.Servers)
	for _, s := range all {
		if votes[string(s.ID)] {
			have++
		}
	}
	if have >= majority(len(all)) {
		return fmt.Errorf("%w: %s runs; with this server that is %d of %d votes: start it, or stop those first if they shall not take part",
			ErrQuorum, strings.Join(alive, ", "), have, len(all))
	}
	return nil
}

// run replays the log and writes it down as a snapshot with one member.
func (r *recovery) run(now time.Time) error {
	rc := r.cfg.raftConfig(r.cfg.Timing)
	address, transport := raft.NewInmemTransport(raft.ServerAddress(r.out.Server.Address)) // for its encoding of addresses
	one := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(r.out.Server.ID), Address: address}}}
	machine := &epochMachine{Store: r.store, keys: r.keys, begin: func() error {
		if err := r.store.Err(); err != nil {
			return err
		}
		r.out.Newest = r.store.View().Time()
		r.out.Epoch = NextEpoch(r.store.View().Epoch(), now)
		err := beginEpoch(r.store, r.out.Epoch, r.out.Index, r.out.Term, r.out.Left)
		r.out.Revision = r.store.View().Revision()
		return err
	}}
	err := raft.RecoverCluster(rc, machine, r.files.log, r.files.stable, r.files.snapshots, transport, one)
	return errors.Join(err, transport.Close())
}

// epochMachine opens what is sealed, and begins a new epoch when the log has
// been replayed: Raft takes its snapshot then.
type epochMachine struct {
	*fsm.Store
	keys   *seal.Ring
	opener seal.Opener
	begin  func() error
}

func (m *epochMachine) Apply(l *raft.Log) any {
	plain, err := m.opener.Open(l.Data, m.keys.Get)
	if err != nil {
		m.Halt(fmt.Errorf("entry %d: %w", l.Index, err)) // Snapshot says so
		return m.Err()
	}
	opened := *l
	opened.Data = plain
	return m.Store.Apply(&opened)
}

func (m *epochMachine) Restore(r io.ReadCloser) error {
	plain, err := seal.NewReader(r, m.keys.Get)
	if err != nil {
		return errors.Join(fmt.Errorf("restore snapshot: %w", err), r.Close())
	}
	return m.Store.Restore(struct {
		io.Reader
		io.Closer
	}{plain, r})
}

func (m *epochMachine) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	plain, err := m.Store.Snapshot()
	key, sealed := m.keys.Keys().Newest()
	if err != nil || !sealed {
		return plain, err
	}
	return &sealedSnapshot{FSMSnapshot: plain, key: key}, nil
}

// getOnce asks one server once and decodes its answer in JSON.
func getOnce(ctx context.Context, cfg *tls.Config, method, address, path string, answer any) (err error) {
	cfg.NextProtos = []string{"http/1.1"}
	transport := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, "https://"+address+path, http.NoBody)
	if err != nil {
		return err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close() // read-only
	out, err := io.ReadAll(io.LimitReader(res.Body, maxSmallBody))
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", address, res.Status)
	}
	return json.Unmarshal(out, answer)
}
