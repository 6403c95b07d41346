package cluster

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are registered while the node lives.
type metrics struct {
	registerer prometheus.Registerer // nil if nobody wants them
	all        []prometheus.Collector

	leaderChanges prometheus.Counter
	resends       prometheus.Counter
	panics        prometheus.Counter
	heartbeats    *prometheus.CounterVec
	commits       *prometheus.HistogramVec
	batchSize     prometheus.Histogram
	batchBytes    prometheus.Histogram
	forwardTimes  *prometheus.HistogramVec
	readRounds    *prometheus.CounterVec
	peerChanges   *prometheus.CounterVec
	leaderLosses  *prometheus.CounterVec
	decisions     *prometheus.CounterVec
	stalls        prometheus.Counter
	diskStalls    prometheus.Counter
	diskDecisions *prometheus.CounterVec
	comparisons   *prometheus.CounterVec
}

func newMetrics(n *Node) (*metrics, error) {
	m := &metrics{registerer: n.cfg.Registerer}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		m.all = append(m.all, c)
		return c
	}
	gauge := func(name, help string, f func() float64) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
	}
	m.leaderChanges = counter("shepherd_leader_changes_total", "How often this server saw another leader, or none.")
	m.resends = counter("shepherd_forward_resends_total", "Requests sent again because the leader changed or could not be reached.")
	m.panics = counter("shepherd_handler_panics_total", "Forwarded requests whose handler panicked.")
	m.heartbeats = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "shepherd_agent_heartbeats_total", Help: "Agents' heartbeats received here, by whether a majority recorded them.",
	}, []string{"outcome"})
	m.commits = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "shepherd_propose_seconds", Help: "Time from a proposal to its result.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
	}, []string{"outcome"})
	m.batchSize = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "shepherd_batch_commands", Help: "Commands in one log entry.", Buckets: prometheus.ExponentialBuckets(1, 2, 10),
	})
	m.batchBytes = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "shepherd_batch_bytes", Help: "Size of one log entry of commands.", Buckets: prometheus.ExponentialBuckets(256, 4, 8),
	})
	m.forwardTimes = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "shepherd_forward_seconds", Help: "Time to have a leader handle a request that was received here, resends included, by whether an answer came.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
	}, []string{"outcome"})
	m.readRounds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "shepherd_read_index_rounds_total", Help: "Rounds that confirmed reads: one round serves all reads that wait. By role (replica: for the reads here; leader: asking a majority) and outcome.",
	}, []string{"role", "outcome"})
	m.all = append(m.all, m.heartbeats, m.commits, m.batchSize, m.batchBytes, m.forwardTimes, m.readRounds)
	m.addDetector(n)
	m.comparisons = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "shepherd_state_comparisons_total", Help: "Comparisons of this server's state with that of the others, by what they gave: equal, other (another server differs), undecided, differs (this one does) or unanswered.",
	}, []string{"outcome"})
	m.all = append(m.all, m.comparisons, n.files.kept.seconds)
	gauge("shepherd_state_differs", "1 if this server's state differs from that of the others, so that it does not serve.", func() float64 { return truth(n.trust.problem() != nil) })
	gauge("shepherd_waiting_proposals", "Commands that wait for a place in a log entry.", func() float64 { return float64(n.batch.waitingCount()) })
	gauge("shepherd_handled_requests", "Requests that this leader is handling now.", func() float64 { return float64(len(n.forwards)) })
	gauge("shepherd_apply_lag_entries", "Log entries on disk that are not applied yet.", func() float64 {
		applied, last := n.raft.AppliedIndex(), n.raft.LastIndex() // in this order: it must not be negative
		return float64(last - applied)
	})
	gauge("shepherd_applied_index", "Last log entry applied to the state.", func() float64 { return float64(n.store.Applied()) })
	gauge("shepherd_commit_index", "Last log entry known to be committed.", func() float64 { return float64(n.raft.CommitIndex()) })
	gauge("shepherd_last_index", "Last log entry on disk.", func() float64 { return float64(n.raft.LastIndex()) })
	gauge("shepherd_raft_log_bytes", "Size of the log entries on disk. The file is larger: it keeps the room of those that were deleted.", func() float64 { return float64(n.files.bounded.size()) })
	gauge("shepherd_raft_snapshot_last_index", "Last log entry in the last snapshot.", func() float64 { index, _ := n.files.kept.latest(); return float64(index) })
	gauge("shepherd_raft_snapshot_size_bytes", "Size of the last snapshot.", func() float64 { _, size := n.files.kept.latest(); return float64(size) })
	gauge("shepherd_term", "Current term.", func() float64 { return float64(n.raft.CurrentTerm()) })
	gauge("shepherd_revision", "Revision of the state.", func() float64 { return float64(n.store.View().Revision()) })
	gauge("shepherd_is_leader", "1 if this server leads with its state complete.", func() float64 { return truth(n.level.Load().leading) })
	gauge("shepherd_has_leader", "1 if this server knows a leader.", func() float64 { return truth(n.level.Load().leader != "") })
	return m, m.register()
}

// addDetector adds what the failure detector counts.
func (m *metrics) addDetector(n *Node) {
	vector := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		m.all = append(m.all, c)
		return c
	}
	m.peerChanges = vector("shepherd_detector_peer_changes_total", "What became of peers: up, doubted, dead, silent or restarted.", "state")
	m.leaderLosses = vector("shepherd_detector_leader_losses_total", "How often this server lost its leader, by reason.", "reason")
	m.decisions = vector("shepherd_detector_decisions_total", "What this server decided about lost leaders.", "decision")
	m.stalls = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "shepherd_detector_stalls_total", Help: "How often this process stood still for so long that silence of its peers meant nothing.",
	})
	m.diskStalls = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "shepherd_disk_stalls_total", Help: "Calls to this server's log that hung for half of the bound.",
	})
	m.all = append(m.all, m.stalls, m.diskStalls, n.files.calls.seconds)
	m.diskDecisions = vector("shepherd_disk_decisions_total", "What this server decided, as leader, about its hanging disk: stay or give up.", "decision")
	t, ok := n.cfg.Transport.(*Transport)
	if !ok {
		return
	}
	for name, f := range map[string]struct {
		help  string
		value *atomic.Uint64
	}{
		"shepherd_vote_retries_total":           {"Requests for votes that were sent again.", &t.voteRetries},
		"shepherd_raft_snapshot_installs_total": {"Snapshots from a leader that this server, too far behind for the log, began to install.", &t.installs},
		"shepherd_raft_snapshot_late_total":     {"Snapshots from a leader that were refused because this server had applied more already.", &t.lateInstalls},
		"shepherd_entries_held_total":           {"How often entries for a peer that is down were held back.", &t.holds},
	} {
		m.all = append(m.all, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: f.help}, func() float64 { return float64(f.value.Load()) }))
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metrics) register() error {
	if m.registerer == nil {
		return nil
	}
	for i, c := range m.all {
		if err := m.registerer.Register(c); err != nil {
			m.all = m.all[:i]
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// unregister may be called on nil and more than once.
func (m *metrics) unregister() {
	if m == nil || m.registerer == nil {
		return
	}
	for _, c := range m.all {
		m.registerer.Unregister(c)
	}
	m.all = nil
}

// commit counts one proposal.
func (m *metrics) commit(took time.Duration, err error) {
	outcome := "ok"
	switch {
	case errors.Is(err, ErrAmbiguous):
		outcome = "ambiguous"
	case err != nil:
		outcome = "refused"
	}
	m.commits.WithLabelValues(outcome).Observe(took.Seconds())
}

// forward counts one request that was brought to a leader, or was not.
func (m *metrics) forward(took time.Duration, err error) {
	m.forwardTimes.WithLabelValues(okOrFailed(err)).Observe(took.Seconds())
}

// counted makes a round of reads count.
func (m *metrics) counted(role string, find func() (uint64, error)) func() (uint64, error) {
	return func() (uint64, error) {
		index, err := find()
		m.readRounds.WithLabelValues(role, okOrFailed(err)).Inc()
		return index, err
	}
}

func okOrFailed(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}
