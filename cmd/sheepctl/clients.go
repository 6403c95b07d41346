package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// anyServerName is a name that every server's certificate carries. A client
// that may talk to any of them checks this one: only the cluster's own CA can
// have issued it.
const anyServerName = "localhost"

// dialTimeout bounds one attempt to connect before the next server is tried.
const dialTimeout = time.Second

// machineKubeconfig is where a server on this machine keeps its kubeconfig.
func machineKubeconfig() string {
	dir := os.Getenv("SHEPHERD_DATA_DIR")
	if dir == "" {
		dir = "/var/lib/shepherd"
	}
	return filepath.Join(dir, "admin.kubeconfig")
}

// useMachineKubeconfig points KUBECONFIG at this machine's kubeconfig when the
// user has named none and has none of their own.
func useMachineKubeconfig(args []string) {
	for _, a := range args {
		if a == "--kubeconfig" || strings.HasPrefix(a, "--kubeconfig=") {
			return
		}
	}
	if os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "" {
		return
	}
	if _, err := os.Stat(clientcmd.RecommendedHomeFile); err == nil {
		return
	}
	path := machineKubeconfig()
	if f, err := os.Open(path); err == nil {
		_ = f.Close()
		os.Setenv(clientcmd.RecommendedConfigPathEnvVar, path)
	}
}

// clients makes the client configurations of one run.
type clients struct {
	flags *genericclioptions.ConfigFlags

	once    sync.Once
	dialer  *serverDialer
	loadErr error
}

// tryEveryServer lets a configuration reach any server of its cluster that the
// kubeconfig names, unless the user asked for one with --server.
func (c *clients) tryEveryServer(config *rest.Config) *rest.Config {
	if c.flags.APIServer != nil && *c.flags.APIServer != "" {
		return config
	}
	c.once.Do(func() {
		var servers []server
		if servers, c.loadErr = c.servers(); c.loadErr == nil && len(servers) > 1 {
			c.dialer = newServerDialer(servers)
		}
	})
	if c.dialer == nil || !c.dialer.knows(config.Host) {
		return config
	}
	config.Dial = c.dialer.dial
	if config.TLSClientConfig.ServerName == "" && !config.TLSClientConfig.Insecure {
		config.TLSClientConfig.ServerName = anyServerName
	}
	return config
}

// server is one server of the cluster, as the kubeconfig names it.
type server struct {
	context string
	url     string
	address string // host:port
}

// servers lists the servers of the current context's cluster: those that the
// kubeconfig trusts by the same CA. The current one is first.
func (c *clients) servers() ([]server, error) {
	raw, err := c.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, err
	}
	name := raw.CurrentContext
	if c.flags.Context != nil && *c.flags.Context != "" {
		name = *c.flags.Context
	}
	current, err := contextServer(&raw, name)
	if err != nil {
		return nil, err
	}
	ca := raw.Clusters[raw.Contexts[name].Cluster].CertificateAuthorityData
	servers := []server{current}
	names := make([]string, 0, len(raw.Contexts))
	for n := range raw.Contexts {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		s, err := contextServer(&raw, n)
		if err != nil || n == name {
			continue
		}
		same := string(raw.Clusters[raw.Contexts[n].Cluster].CertificateAuthorityData) == string(ca)
		if same && !slices.ContainsFunc(servers, func(o server) bool { return o.address == s.address }) {
			servers = append(servers, s)
		}
	}
	return servers, nil
}

func contextServer(raw *clientcmdapi.Config, name string) (server, error) {
	ctx := raw.Contexts[name]
	if ctx == nil {
		return server{}, fmt.Errorf("the kubeconfig has no context %q; see `sheepctl config get-contexts`", name)
	}
	cluster := raw.Clusters[ctx.Cluster]
	if cluster == nil {
		return server{}, fmt.Errorf("context %q names the cluster %q, which the kubeconfig does not have", name, ctx.Cluster)
	}
	u, err := url.Parse(cluster.Server)
	if err != nil {
		return server{}, fmt.Errorf("cluster %q: %w", ctx.Cluster, err)
	}
	return server{context: name, url: cluster.Server, address: hostPort(u)}, nil
}

func hostPort(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), "443")
}

// serverDialer connects to the first server that answers, beginning with the
// one that did so last. It is safe for concurrent use.
type serverDialer struct {
	mu        sync.Mutex
	addresses []string // the last good one first
}

func newServerDialer(servers []server) *serverDialer {
	d := &serverDialer{}
	for _, s := range servers {
		d.addresses = append(d.addresses, s.address)
	}
	return d
}

func (d *serverDialer) knows(host string) bool {
	u, err := url.Parse(host)
	if err != nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.addresses, hostPort(u))
}

func (d *serverDialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d.mu.Lock()
	addresses := slices.Clone(d.addresses)
	d.mu.Unlock()
	if !slices.Contains(addresses, address) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	var failures []string
	for _, a := range addresses {
		conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, a)
		if err == nil {
			d.prefer(a)
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		failures = append(failures, err.Error())
	}
	return nil, fmt.Errorf("no server of the cluster answers: %s", strings.Join(failures, "; "))
}

func (d *serverDialer) prefer(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.Index(d.addresses, address); i > 0 {
		d.addresses = slices.Insert(slices.Delete(d.addresses, i, i+1), 0, address)
	}
}
