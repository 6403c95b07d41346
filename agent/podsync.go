package agent

import (
	"context"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shepherd-project/shepherd/agent/image"
	"github.com/shepherd-project/shepherd/agent/network"
	"github.com/shepherd-project/shepherd/agent/runtime"
	"github.com/shepherd-project/shepherd/agent/volume"
)

// podRuntime is what pod sync needs of the runtime.
type podRuntime interface {
	Pods(ctx context.Context) []runtime.PodStatus
	CreatePod(ctx context.Context, p runtime.PodConfig) error
	StartContainer(ctx context.Context, podUID string, c runtime.ContainerConfig) error
	StopContainer(ctx context.Context, podUID, name string, grace time.Duration) error
	RemovePod(ctx context.Context, podUID string, grace time.Duration) error
	Exec(ctx context.Context, podUID, container string, e runtime.ExecConfig) (int, error)
	Changed() <-chan struct{}
}

// podNetwork is what pod sync needs of the network.
type podNetwork interface {
	AddPod(ctx context.Context, uid string) (netns string, ip netip.Addr, err error)
	PodIP(uid string) (netip.Addr, bool)
	RemovePod(ctx context.Context, uid string) error
	Pods() []string
}

// podManager makes what runs on this machine match the pods bound to it. Each
// pod has a worker of its own, so one that is slow delays no other.
type podManager struct {
	cfg       *Config
	client    *client
	source    *podSource
	runtime   podRuntime
	images    *image.Store
	network   podNetwork
	volumes   *volume.Manager
	objects   volume.Objects
	puller    *puller
	reporter  *statusReporter
	events    *recorder
	revisions *revisions
	machine   *machine
	logger    hclog.Logger

	mu      sync.Mutex
	workers map[string]*podWorker
	wg      sync.WaitGroup
	held    bool // kills are being held back, and that was said
}

var _ podNetwork = (*network.Manager)(nil)

// sync hands every worker what the server wants of its pod, and makes workers
// for pods that are new on either side. It does nothing that can take long.
func (m *podManager) sync(ctx context.Context) {
	pods, synced := m.source.snapshot()
	if !synced {
		return // without a list nothing is known to be missing
	}
	for _, pod := range pods {
		m.worker(ctx, string(pod.UID)).update(pod)
	}
	local := map[string]runtime.PodStatus{}
	for _, st := range m.runtime.Pods(ctx) {
		local[st.UID] = st
	}
	m.eachLocal(local, func(uid string) {
		if _, wanted := pods[types.UID(uid)]; !wanted {
			m.worker(ctx, uid).missing(local[uid].Namespace, local[uid].Name)
		}
	})
	if err := m.revisions.save(); err != nil {
		m.logger.Error("last revision not kept", "error", err)
	}
}

// eachLocal calls fn for every pod that has anything on this machine.
func (m *podManager) eachLocal(local map[string]runtime.PodStatus, fn func(uid string)) {
	seen := map[string]bool{}
	add := func(uid string) {
		if !seen[uid] {
			seen[uid] = true
			fn(uid)
		}
	}
	for uid := range local {
		add(uid)
	}
	for _, uid := range m.network.Pods() {
		add(uid)
	}
	uids, err := m.volumes.Pods()
	if err != nil {
		m.logger.Error("list volumes", "error", err)
	}
	for _, uid := range uids {
		add(uid)
	}
	m.mu.Lock()
	workers := make([]string, 0, len(m.workers))
	for uid := range m.workers {
		workers = append(workers, uid)
	}
	m.mu.Unlock()
	for _, uid := range workers {
		add(uid)
	}
}

// worker returns the pod's worker and starts one if there is none.
func (m *podManager) worker(ctx context.Context, uid string) *podWorker {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[uid]; w != nil {
		return w
	}
	w := newPodWorker(m, uid)
	m.workers[uid] = w
	m.wg.Go(func() { w.run(ctx) })
	return w
}

// forget removes a worker that has nothing more to do, unless it was told of
// something new meanwhile.
func (m *podManager) forget(w *podWorker) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dirty {
		return false
	}
	delete(m.workers, w.uid)
	return true
}

// reported takes the pod as the server has it after a status report.
func (m *podManager) reported(pod *corev1.Pod) {
	m.mu.Lock()
	w := m.workers[string(pod.UID)]
	m.mu.Unlock()
	if w != nil {
		w.refresh(pod)
	}
}

// find returns the pod with this UID as last seen.
func (m *podManager) find(uid string) *corev1.Pod {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// watchRuntime wakes the workers of pods in which something has changed.
func (m *podManager) watchRuntime(ctx context.Context) {
	last := map[string]runtime.PodStatus{}
	for {
		select {
		case <-m.runtime.Changed():
		case <-ctx.Done():
			return
		}
		now := map[string]runtime.PodStatus{}
		for _, st := range m.runtime.Pods(ctx) {
			now[st.UID] = st
			if !reflect.DeepEqual(last[st.UID], st) {
				m.wake(st.UID)
			}
		}
		for uid := range last {
			if _, ok := now[uid]; !ok {
				m.wake(uid)
			}
		}
		last = now
	}
}

func (m *podManager) wake(uid string) {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w != nil {
		kick(w.wake)
	}
}

// mayKill says whether pods that the cluster does not know may be killed now.
func (m *podManager) mayKill() error {
	err := m.revisions.mayKill()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && !m.held {
		m.logger.Error("kills are held back", "error", err, "annotation", annotationEpoch)
	}
	m.held = err != nil
	return err
}

// wait returns when all workers have returned.
func (m *podManager) wait() { m.wg.Wait() }
