package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/shepherd-project/shepherd/agent"
	"github.com/shepherd-project/shepherd/api"
	"github.com/shepherd-project/shepherd/cluster"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/controllers"
	"github.com/shepherd-project/shepherd/fsm"
)

// Modes of the daemon.
const (
	modeServer     = "server"
	modeAgent      = "agent"
	modeStandalone = "standalone"
)

// settings is everything that can be set, as one list of flags. The same
// names are keys of the configuration file, and of the environment as
// SHEPHERD_NAME.
type settings struct {
	Mode       string
	Name       string
	Addr       string
	Advertise  string
	TLSSAN     []string
	DataDir    string
	Bootstrap  bool
	Join       []string
	TokenFile  string
	NodeName   string
	RunDir     string
	CgroupRoot string
	ConfigFile string
	LogLevel   string
	LogJSON    bool

	CertificateTTL time.Duration
	TokenTTL       time.Duration
	StopTimeout    time.Duration

	port        cluster.PortConfig
	store       fsm.Config
	cluster     cluster.Config
	backups     cluster.BackupSchedule
	api         api.Config
	controllers controllers.Config
	agent       agent.Config

	cleanup          bool // only the agent's directories matter
	acceptDifference bool // of the command recover
	flags            *pflag.FlagSet
	set              map[string]string // setting -> where its value came from, unless default
}

// commandLevel is the highest command level that this program can apply. Tests
// make it run as another build.
var commandLevel uint8 = fsm.Level

// newSettings returns the defaults, bound to a set of flags.
func newSettings() *settings {
	s := &settings{
		port: cluster.DefaultPortConfig(), store: fsm.DefaultConfig(), cluster: cluster.DefaultConfig(), backups: cluster.DefaultBackupSchedule(),
		api: api.DefaultConfig(), controllers: controllers.DefaultConfig(), agent: agent.DefaultConfig(),
		flags: pflag.NewFlagSet("shepherd", pflag.ContinueOnError), set: map[string]string{},
	}
	s.store.Level = commandLevel
	s.flags.SortFlags = false
	s.flags.Usage = func() {} // the error names the flag; the whole list would hide it
	s.mainFlags()
	s.clusterFlags()
	s.backupFlags()
	s.apiFlags()
	s.controllerFlags()
	s.agentFlags()
	return s
}

func (s *settings) mainFlags() {
	f := s.flags
	f.StringVar(&s.Mode, "mode", "", "what this machine is: server, agent, or standalone (both in one process; bootstraps itself)")
	f.StringVar(&s.Name, "name", "", "name of this server (default: the host name)")
	f.StringVar(&s.Addr, "addr", ":9876", "HOST:PORT to listen on; everything of a server is on this one TLS port")
	f.StringVar(&s.Advertise, "advertise", "", "HOST:PORT at which others reach this server (default: --addr's host when it has one, else the source address of the default route)")
	f.StringSliceVar(&s.TLSSAN, "tls-san", nil, "further host names and addresses for the server's certificate")
	f.StringVar(&s.DataDir, "data-dir", "/var/lib/shepherd", "directory for what must outlive a restart")
	f.BoolVar(&s.Bootstrap, "bootstrap", false, "begin a new cluster if the data directory is empty")
	f.StringSliceVar(&s.Join, "join", nil, "HOST:PORT of servers to join, any that are up")
	f.StringVar(&s.TokenFile, "token-file", "", "file with the join token (DATA/token/server or DATA/token/agent of any server)")
	f.StringVar(&s.NodeName, "node-name", "", "name of this machine's Node (default: the host name)")
	f.StringVar(&s.RunDir, "run-dir", "/run/shepherd", "directory for what must not outlive a reboot")
	f.StringVar(&s.CgroupRoot, "cgroup-root", "/shepherd", "cgroup below which pods run")
	f.StringVar(&s.ConfigFile, "config", "", "YAML file with any of these settings as keys; flags win over SHEPHERD_* variables, which win over the file")
	f.StringVar(&s.LogLevel, "log-level", "info", "trace, debug, info, warn or error")
	f.BoolVar(&s.LogJSON, "log-json", false, "log as JSON")
}

func (s *settings) clusterFlags() {
	f, t := s.flags, &s.cluster.Timing
	f.Float64Var(&t.Scale, "timing-scale", t.Scale, "multiplies the Raft and forwarding periods below; more than 1 for slow links")
	f.DurationVar(&t.Heartbeat, "raft-heartbeat", t.Heartbeat, "a follower without contact for that long calls an election")
	f.DurationVar(&t.Election, "raft-election", t.Election, "a candidate without a result for that long tries again")
	f.DurationVar(&t.LeaderLease, "raft-leader-lease", t.LeaderLease, "a leader without a majority for that long steps down")
	f.DurationVar(&t.Commit, "raft-commit", t.Commit, "how long an idle leader waits before it tells followers the commit index")
	f.DurationVar(&t.Transport, "raft-transport", t.Transport, "bound of one Raft call")
	f.DurationVar(&t.Forward, "forward-timeout", t.Forward, "how long a write is passed on from leader to leader")
	f.DurationVar(&t.Propose, "propose-timeout", t.Propose, "bound of one proposal")
	f.DurationVar(&t.Read, "read-timeout", t.Read, "bound of confirming that a read is current")
	f.DurationVar(&t.Round, "round-timeout", t.Round, "bound of asking a majority once")
	f.DurationVar(&t.Promote, "promote-interval", t.Promote, "how often a leader looks whether a new server has caught up")
	f.DurationVar(&t.Status, "status-timeout", t.Status, "bound of asking the members for their state")
	f.DurationVar(&t.Snapshot, "snapshot-interval", t.Snapshot, "how often to look whether the log should be compacted")
	f.BoolVar(&s.cluster.FailureDetector, "failure-detector", s.cluster.FailureDetector, "elect a new leader as soon as a majority of the servers has lost the old one")
	f.DurationVar(&t.Ping, "detector-ping", t.Ping, "how often servers ask each other whether they are there")
	f.DurationVar(&t.Silence, "detector-silence", t.Silence, "a server that has not answered for that long is lost")
	f.DurationVar(&t.Standby, "detector-standby", t.Standby, "how long the next in rank waits for the first to stand for election")
	f.DurationVar(&t.Patience, "detector-patience", t.Patience, "how long it waits for an election that has begun")
	f.DurationVar(&t.DiskStall, "disk-stall", t.DiskStall, "a leader whose disk hangs for that long ends, if a majority of the others has working disks")
	f.DurationVar(&s.cluster.DeadServerGrace, "dead-server-grace", s.cluster.DeadServerGrace, "a server dead for that long is removed, as long as three voters are left; 0 never")
	f.DurationVar(&s.cluster.DeadJoinerGrace, "dead-joiner-grace", s.cluster.DeadJoinerGrace, "a server that joined, has no vote yet and is dead for that long is removed; 0 never")
	f.Uint64Var(&s.cluster.SnapshotThreshold, "snapshot-threshold", s.cluster.SnapshotThreshold, "log entries after which a snapshot is taken")
	f.Uint64Var(&s.cluster.TrailingLogs, "trailing-logs", s.cluster.TrailingLogs, "log entries kept behind a snapshot, for followers that lag")
	f.IntVar(&s.cluster.SnapshotsKept, "snapshots-kept", s.cluster.SnapshotsKept, "snapshots kept on disk")
	f.IntVar(&s.cluster.MaxBatch, "max-batch", s.cluster.MaxBatch, "commands in one log entry")
	f.IntVar(&s.cluster.MaxBatchBytes, "max-batch-bytes", s.cluster.MaxBatchBytes, "bytes of commands in one log entry")
	f.IntVar(&s.cluster.MaxPending, "max-pending", s.cluster.MaxPending, "commands that may wait for a log entry")
	f.IntVar(&s.cluster.MaxForwards, "max-forwards", s.cluster.MaxForwards, "forwarded requests that a leader handles at once")
	f.IntVar(&s.store.RingBytes, "event-ring-bytes", s.store.RingBytes, "memory for events that watchers have not read yet")
	f.DurationVar(&s.CertificateTTL, "certificate-ttl", pki.DefaultTTL, "life of certificates; they are renewed at half of it")
	f.DurationVar(&s.TokenTTL, "token-ttl", cluster.DefaultTokenTTL, "life of join tokens; the files are renewed at half of it")
	f.DurationVar(&s.StopTimeout, "stop-timeout", 15*time.Second, "bound of a graceful stop")
	f.DurationVar(&s.port.HandshakeTimeout, "handshake-timeout", s.port.HandshakeTimeout, "bound of a TLS handshake")
	f.IntVar(&s.port.MaxHandshakes, "max-handshakes", s.port.MaxHandshakes, "handshakes of clients and agents at once")
	f.IntVar(&s.port.PeerHandshakes, "peer-handshakes", s.port.PeerHandshakes, "handshakes of servers at once, on top")
	f.IntVar(&s.port.MaxPending, "max-connecting", s.port.MaxPending, "connections that have not said yet whether they are a client's or a server's; a quarter of what the limit of open files leaves at most")
	f.IntVar(&s.port.MaxClients, "max-clients", s.port.MaxClients, "connections of clients and agents; what the limit of open files leaves at most")
}

func (s *settings) backupFlags() {
	f, b := s.flags, &s.backups
	f.StringVar(&b.Dir, "backup-dir", "", "directory for scheduled backups, which the leader writes: each server's own, or a mount that all share; it must exist")
	f.DurationVar(&b.Interval, "backup-interval", b.Interval, "time between two scheduled backups, counted from the newest good one in --backup-dir, whichever server made it; 0 makes none")
	f.IntVar(&b.Keep, "backup-keep", b.Keep, "scheduled backups of this cluster kept in --backup-dir; older ones are removed after a new one was read back")
	f.StringVar(&b.PassphraseFile, "backup-passphrase-file", "", "file with the passphrase of scheduled backups, its first line; read for each of them")
	f.BoolVar(&b.Plain, "backup-no-encryption", false, "scheduled backups are plain files, which hold the cluster's CA key and all Secrets for everyone who can read them")
}

func (s *settings) apiFlags() {
	f, a := s.flags, &s.api
	f.Int64Var(&a.MaxRequestBytes, "max-request-bytes", a.MaxRequestBytes, "largest body of a request")
	f.IntVar(&a.DecoderBytes, "object-cache-bytes", a.DecoderBytes, "memory for decoded objects")
	f.IntVar(&a.EncoderBytes, "json-cache-bytes", a.EncoderBytes, "memory for objects encoded as JSON")
	f.DurationVar(&a.RequestTimeout, "request-timeout", a.RequestTimeout, "bound of a request, but for watches and logs")
	f.DurationVar(&a.RevisionWait, "revision-wait", a.RevisionWait, "how long a read waits for a revision that is not here yet")
	f.DurationVar(&a.WatchMin, "watch-min", a.WatchMin, "shortest life of a watch that asks for none")
	f.DurationVar(&a.WatchMax, "watch-max", a.WatchMax, "longest life of a watch that asks for none")
	f.DurationVar(&a.BookmarkInterval, "bookmark-interval", a.BookmarkInterval, "time between a watch's bookmarks")
	f.DurationVar(&a.WatchWriteTimeout, "watch-write-timeout", a.WatchWriteTimeout, "a watcher that reads slower is closed")
	f.DurationVar(&a.StreamDialTimeout, "stream-timeout", a.StreamDialTimeout, "how long a log request waits for the node's stream")
	f.Int64Var(&a.Write.MaxBufferedBytes, "max-buffered-bytes", a.Write.MaxBufferedBytes, "memory for the bodies of all writes under way")
	f.DurationVar(&a.Write.DecisionTimeout, "decision-timeout", a.Write.DecisionTimeout, "bound of the leader's work on one write")
	f.IntVar(&a.Write.MaxPlans, "max-plans", a.Write.MaxPlans, "how often a write is planned again after conflicts")
	f.Int32Var(&a.Write.NodePortFirst, "node-port-first", a.Write.NodePortFirst, "first node port")
	f.Int32Var(&a.Write.NodePortLast, "node-port-last", a.Write.NodePortLast, "last node port")
}

func (s *settings) controllerFlags() {
	f, c := s.flags, &s.controllers
	f.DurationVar(&c.SchedulerPeriod, "scheduler-period", c.SchedulerPeriod, "time between two reconciles of the scheduler")
	f.DurationVar(&c.ReplicationPeriod, "replication-period", c.ReplicationPeriod, "of the replication controllers")
	f.DurationVar(&c.ServicePeriod, "service-period", c.ServicePeriod, "of the service controller")
	f.DurationVar(&c.NodePeriod, "node-period", c.NodePeriod, "of the node controller")
	f.DurationVar(&c.GCPeriod, "gc-period", c.GCPeriod, "of the garbage collector")
	f.DurationVar(&c.NamespacePeriod, "namespace-period", c.NamespacePeriod, "of the namespace controller")
	f.DurationVar(&c.NodeMonitorGrace, "node-monitor-grace", c.NodeMonitorGrace, "a node unheard of for that long is NotReady")
	f.DurationVar(&c.EvictionGrace, "eviction-grace", c.EvictionGrace, "the pods of a node that is NotReady for that long are removed")
	f.DurationVar(&c.LeasePeriod, "lease-period", c.LeasePeriod, "time between two batches of node leases")
	f.DurationVar(&c.EventTTL, "event-ttl", c.EventTTL, "how long events are kept")
	f.IntVar(&c.FinishedPods, "finished-pods", c.FinishedPods, "how many finished pods without a controller are kept")
	f.TextVar(&c.ClusterCIDR, "cluster-cidr", c.ClusterCIDR, "range of pod addresses")
	f.IntVar(&c.NodeMask, "node-mask", c.NodeMask, "bits of a node's range of pod addresses")
	f.TextVar(&c.ServiceCIDR, "service-cidr", c.ServiceCIDR, "range of service addresses")
}

func (s *settings) agentFlags() {
	f, a := s.flags, &s.agent
	f.TextVar(&a.NodeIP, "node-ip", a.NodeIP, "address of this node for others (default: the source address of the route to the first server)")
	f.StringVar(&a.LocalAddr, "local-addr", a.LocalAddr, "loopback HOST:PORT passed through to any live server; empty turns it off")
	f.StringToStringVar(&a.Labels, "node-labels", nil, "labels of the Node, KEY=VALUE")
	f.Var(&taints{&a.Taints}, "node-taints", "taints that the Node is created with, KEY[=VALUE]:EFFECT")
	f.IntVar(&a.MaxPods, "max-pods", a.MaxPods, "the Node's capacity in pods")
	f.StringVar(&a.ShimPath, "shim", "", "the shepherd-shim program (default: beside this one)")
	f.DurationVar(&a.HeartbeatInterval, "heartbeat-interval", a.HeartbeatInterval, "time between two of the agent's heartbeats")
	f.DurationVar(&a.HeartbeatTimeout, "heartbeat-timeout", a.HeartbeatTimeout, "bound of one heartbeat at one server")
	f.DurationVar(&a.SyncInterval, "sync-interval", a.SyncInterval, "time between two looks at all pods")
	f.DurationVar(&a.NodeStatusInterval, "node-status-interval", a.NodeStatusInterval, "time between two reports of an unchanged node")
	f.IntVar(&a.MaxParallelPulls, "max-parallel-pulls", a.MaxParallelPulls, "images pulled at once")
	f.StringSliceVar(&a.InsecureRegistries, "insecure-registries", nil, "HOST[:PORT] of registries without TLS")
	f.StringSliceVar(&a.DNS.Servers, "dns-servers", nil, "name servers of pods (default: the machine's)")
	f.StringVar(&a.DNS.Domain, "dns-domain", a.DNS.Domain, "the cluster's domain")
}

// isSet reports whether the setting was given at all.
func (s *settings) isSet(name string) bool { return s.set[name] != "" }

func (s *settings) isServer() bool { return s.Mode == modeServer || s.Mode == modeStandalone }
func (s *settings) isAgent() bool  { return s.Mode == modeAgent || s.Mode == modeStandalone }

// complete fills in what follows from the machine and from other settings,
// and reports every setting that cannot work.
func (s *settings) complete() error {
	var errs []error
	bad := func(name, format string, args ...any) {
		from := s.set[name]
		if from == "" {
			from = "--" + name
		}
		errs = append(errs, fmt.Errorf("%s: %w", from, fmt.Errorf(format, args...)))
	}
	if !slices.Contains([]string{modeServer, modeAgent, modeStandalone}, s.Mode) {
		bad("mode", "%q is not one of server, agent, standalone", s.Mode)
	}
	s.completeNames(bad)
	s.completeAddresses(bad)
	for name, dir := range map[string]*string{"data-dir": &s.DataDir, "run-dir": &s.RunDir} {
		abs, err := filepath.Abs(*dir)
		if err != nil || *dir == "" {
			bad(name, "%q is no directory name: %v", *dir, err)
		}
		*dir = abs
	}
	if hclog.LevelFromString(s.LogLevel) == hclog.NoLevel {
		bad("log-level", "%q is not one of trace, debug, info, warn, error", s.LogLevel)
	}
	for name, d := range map[string]time.Duration{"dead-server-grace": s.cluster.DeadServerGrace, "dead-joiner-grace": s.cluster.DeadJoinerGrace} {
		if d < 0 {
			bad(name, "%v: must not be negative; 0 turns it off", d)
		}
	}
	for name, path := range map[string]*string{"backup-dir": &s.backups.Dir, "backup-passphrase-file": &s.backups.PassphraseFile} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			bad(name, "%q is no file name: %v", *path, err)
		}
		*path = abs
	}
	for name, d := range map[string]time.Duration{"certificate-ttl": s.CertificateTTL, "token-ttl": s.TokenTTL, "stop-timeout": s.StopTimeout} {
		if d <= 0 {
			bad(name, "%v: must be positive", d)
		}
	}
	if s.Bootstrap && len(s.Join) > 0 {
		bad("bootstrap", "a server either begins a cluster or joins one: give --bootstrap or --join, not both")
	}
	if s.Bootstrap && s.Mode == modeAgent && !s.cleanup {
		bad("bootstrap", "an agent cannot begin a cluster")
	}
	if s.Mode == modeStandalone && len(s.Join) > 0 {
		bad("join", "standalone is a cluster of its own; use --mode server to join one")
	}
	s.api.Write.ServiceCIDR = s.controllers.ServiceCIDR
	for _, err := range []error{s.cluster.Timing.Validate(), s.backups.Validate(), s.controllers.Validate(), s.store.Validate(), s.api.Write.Validate()} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

type complain func(name, format string, args ...any)

func (s *settings) completeNames(bad complain) {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	host = strings.ToLower(host)
	for name, value := range map[string]*string{"name": &s.Name, "node-name": &s.NodeName} {
		given := *value != ""
		if !given {
			*value = host
		}
		if err := pki.CheckName(*value); err != nil && given {
			bad(name, "%q: %w", *value, err)
		} else if err != nil {
			bad(name, "the host name %q does not serve as a name (%w); give one", *value, err)
		}
	}
}

func (s *settings) completeAddresses(bad complain) {
	host, port, err := splitAddr(s.Addr)
	switch {
	case err != nil:
		bad("addr", "%q: %w", s.Addr, err)
	case s.Advertise != "":
		if h, _, err := splitAddr(s.Advertise); err != nil {
			bad("advertise", "%q: %w", s.Advertise, err)
		} else if h == "" || unspecified(h) {
			bad("advertise", "%q: others cannot reach this host", s.Advertise)
		}
	case !s.isServer():
	case host != "" && !unspecified(host):
		s.Advertise = net.JoinHostPort(host, port)
	default:
		source, err := defaultSource()
		if errors.Is(err, errNoRoute) && s.Mode == modeStandalone {
			source, err = "127.0.0.1", nil // nobody else can come
		}
		if err != nil {
			bad("advertise", "cannot tell at which address others reach this server: %w; give it as HOST:PORT", err)
			return
		}
		s.Advertise = net.JoinHostPort(source, port)
	}
	for _, a := range s.Join {
		if h, _, err := splitAddr(a); err != nil {
			bad("join", "%q: %w", a, err)
		} else if h == "" {
			bad("join", "%q: the host is missing", a)
		}
	}
}

// splitAddr is net.SplitHostPort with a check of the port.
func splitAddr(a string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(a)
	if err != nil {
		return "", "", errors.New("must be HOST:PORT")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", "", fmt.Errorf("port %q is not a number from 1 to 65535", port)
	}
	return host, port, nil
}

func unspecified(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsUnspecified()
}

// hosts are what the server's certificate must be good for.
func (s *settings) hosts() []string {
	host, _, err := net.SplitHostPort(s.Advertise)
	if err != nil { // complete has checked it
		return s.TLSSAN
	}
	return append([]string{host}, s.TLSSAN...)
}
