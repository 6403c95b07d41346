package agent

import (
	"context"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shepherd-project/shepherd/agent/network"
)

// annotationEpoch on a Node confirms that, after a restore of the cluster to
// the restore epoch that is its value, pods unknown to the cluster may be
// killed on that node.
const annotationEpoch = "shepherd.io/confirm-restore-epoch"

// routeInterval is how often the routes are compared with the kernel's.
const routeInterval = 30 * time.Second

// nodeWatch follows all Nodes: they say how other nodes' pods are reached, and
// which addresses this node's pods have.
type nodeWatch struct {
	name      string
	network   *network.Manager
	revisions *revisions
	logger    hclog.Logger
	report    chan struct{} // kicked when this Node's status needs a look
	pods      chan struct{} // kicked when the node got its addresses
	kick      chan struct{} // feeds routes

	mu         sync.Mutex
	nodes      map[string]*corev1.Node
	seen       bool // a list has arrived
	configured string
}

func newNodeWatch(name string, net *network.Manager, rev *revisions, logger hclog.Logger) *nodeWatch {
	return &nodeWatch{name: name, network: net, revisions: rev, logger: logger, nodes: map[string]*corev1.Node{},
		report: make(chan struct{}, 1), pods: make(chan struct{}, 1), kick: make(chan struct{}, 1)}
}

// count is how many nodes the cluster has, as far as is known.
func (w *nodeWatch) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.nodes)
}

func (w *nodeWatch) follow(client nodeClient) *follower {
	return &follower{
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return client.Watch(ctx, o) },
		replace: func(_ string, items []runtime.Object) error {
			nodes := map[string]*corev1.Node{}
			for _, item := range items {
				if node, ok := item.(*corev1.Node); ok {
					nodes[node.Name] = node
				}
			}
			w.mu.Lock()
			w.nodes, w.seen = nodes, true
			w.mu.Unlock()
			w.changed()
			return nil
		},
		apply: func(kind watch.EventType, obj runtime.Object) error {
			node, ok := obj.(*corev1.Node)
			if !ok {
				return nil
			}
			w.mu.Lock()
			if kind == watch.Deleted {
				delete(w.nodes, node.Name)
			} else {
				w.nodes[node.Name] = node
			}
			w.mu.Unlock()
			w.changed()
			return nil
		},
	}
}

// changed looks at this machine's own Node and wakes whom it concerns.
func (w *nodeWatch) changed() {
	w.mu.Lock()
	own := w.nodes[w.name]
	w.mu.Unlock()
	kick(w.kick)
	if own == nil || !nodeReady(own) {
		kick(w.report) // somebody has removed it or thought it dead
	}
	if own != nil {
		if epoch, err := strconv.ParseUint(own.Annotations[annotationEpoch], 10, 64); err == nil {
			w.revisions.confirm(epoch)
		}
	}
}

func nodeReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// apply brings the node's addresses and routes in line with what is known.
func (w *nodeWatch) apply(ctx context.Context) {
	w.mu.Lock()
	seen := w.seen
	var routes []network.NodeRoute
	var own string
	for name, node := range w.nodes {
		if name == w.name {
			own = node.Spec.PodCIDR
			continue
		}
		if r, ok := nodeRoute(node); ok {
			routes = append(routes, r)
		}
	}
	w.mu.Unlock()
	if !seen {
		return // an empty list is not the same as no list
	}
	w.configure(own)
	if err := w.network.SyncRoutes(ctx, routes); err != nil && ctx.Err() == nil {
		w.logger.Warn("routes to other nodes", "error", err)
	}
}

func (w *nodeWatch) configure(cidr string) {
	w.mu.Lock()
	done := cidr == "" || cidr == w.configured
	w.mu.Unlock()
	if done {
		return
	}
	prefix, err := netip.ParsePrefix(cidr)
	if err == nil {
		err = w.network.Configure(prefix)
	}
	if err != nil {
		w.logger.Error("pod addresses", "range", cidr, "error", err)
		return
	}
	w.logger.Info("pod addresses configured", "range", cidr)
	w.mu.Lock()
	w.configured = cidr
	w.mu.Unlock()
	kick(w.pods)
}

// nodeRoute says how another node's pods are reached.
func nodeRoute(node *corev1.Node) (network.NodeRoute, bool) {
	prefix, err := netip.ParsePrefix(node.Spec.PodCIDR)
	if err != nil {
		return network.NodeRoute{}, false
	}
	for _, a := range node.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP && ip.Is4() {
			return network.NodeRoute{PodCIDR: prefix, NodeIP: ip}, true
		}
	}
	return network.NodeRoute{}, false
}
