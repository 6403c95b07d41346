package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/shepherd-project/shepherd/agent/runtime/cgroup"
)

// Runtime runs pods on this machine. All its methods may be called at once
// from several goroutines. CreatePod, StartContainer and RemovePod of one pod
// wait for each other; nothing else waits for anything but its own work.
type Runtime struct {
	cfg          Config
	log          hclog.Logger
	bootID       string
	capabilities uint64 // that containers can have at all
	binary       *os.File
	root         cgroup.Group
	filters      filterCache
	changed      chan struct{}
	work         sync.WaitGroup // goroutines that tidy up

	mu     sync.Mutex
	closed bool
	pods   map[string]*pod
}

// New opens the runtime; nothing is started and nothing is touched but its
// directories. Call Recover next.
func New(c Config) (*Runtime, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("runtime: %w", err)
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	r := &Runtime{cfg: c, log: c.Logger, changed: make(chan struct{}, 1), pods: map[string]*pod{}}
	if err := r.open(); err != nil {
		return nil, fmt.Errorf("runtime: %w", err)
	}
	return r, nil
}

func (r *Runtime) open() error {
	boot, err := os.ReadFile(r.cfg.BootIDPath)
	if err != nil {
		return fmt.Errorf("read boot ID: %w", err)
	}
	r.bootID = strings.TrimSpace(string(boot))
	h, err := cgroup.Detect()
	if err != nil {
		return err
	}
	r.root = h.Group(r.cfg.CgroupRoot)
	if r.capabilities, err = ownCapabilities(); err != nil {
		return err
	}
	if _, err := r.filters.filter(defaultCapabilities & r.capabilities); err != nil {
		return err
	}
	for _, dir := range []string{r.podsDir(), r.layersDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(r.logsDir(), 0o755); err != nil {
		return err
	}
	r.binary, err = sealShim(r.cfg.ShimPath)
	return err
}

// Changed receives after any change that Pods would show; changes coalesce, and
// the channel serves one reader.
func (r *Runtime) Changed() <-chan struct{} { return r.changed }

func (r *Runtime) notify() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Pods returns a copy of the state of every pod, by UID. It never blocks on a pod.
func (r *Runtime) Pods(context.Context) []PodStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]PodStatus, 0, len(r.pods))
	for _, p := range r.pods {
		out = append(out, p.statusLocked())
	}
	slices.SortFunc(out, func(a, b PodStatus) int { return strings.Compare(a.UID, b.UID) })
	return out
}

func (r *Runtime) get(uid string) (*pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	p := r.pods[uid]
	if p == nil {
		return nil, fmt.Errorf("pod %s: %w", uid, ErrNotFound)
	}
	return p, nil
}

// Close lets go of the pods: they keep running.
func (r *Runtime) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	var clients []*client
	for _, p := range r.pods {
		if p.client != nil {
			clients = append(clients, p.client)
		}
	}
	r.mu.Unlock()
	var errs []error
	for _, c := range clients {
		errs = append(errs, ignoreClosed(c.Close()))
		<-c.done
	}
	r.work.Wait()
	return errors.Join(append(errs, r.binary.Close())...)
}
