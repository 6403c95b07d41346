package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shepherd-project/shepherd/agent/runtime/cgroup"
	"github.com/shepherd-project/shepherd/agent/runtime/shim"
)

// killTimeout bounds the death of killed processes.
const killTimeout = 30 * time.Second

// podRecord is the intent to run a pod, written before anything else of it.
type podRecord struct {
	Version   int       `json:"version"`
	BootID    string    `json:"bootID"`
	CreatedAt time.Time `json:"createdAt"`
	Config    PodConfig `json:"config"` // fields by their Go names
}

// pod is what the agent knows of one pod.
type pod struct {
	r      *Runtime
	record podRecord
	turn   chan struct{} // capacity 1: held by the operation that changes the pod

	// Guarded by Runtime.mu.
	client     *client // nil: dead
	process    *process
	creating   bool
	removing   bool
	containers map[string]*containerState
}

type containerState struct {
	shim.Status
	labels map[string]string
}

func newPod(r *Runtime, rec podRecord) *pod {
	return &pod{r: r, record: rec, turn: make(chan struct{}, 1), containers: map[string]*containerState{}}
}

func (p *pod) uid() string { return p.record.Config.UID }
func (p *pod) dir() string { return p.r.podDir(p.uid()) }
func (p *pod) group() cgroup.Group {
	return p.r.root.Child(groupPrefix + p.uid())
}

// take waits for the pod's turn.
func (p *pod) take(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *pod) release() { <-p.turn }

func (p *pod) statusLocked() PodStatus {
	c := &p.record.Config
	s := PodStatus{
		UID: c.UID, Namespace: c.Namespace, Name: c.Name, NetNS: c.NetNS,
		CreatedAt: p.record.CreatedAt, Labels: c.Labels, Alive: p.client != nil,
	}
	if s.Alive {
		s.PID = p.process.pid
	}
	for _, st := range p.containers {
		s.Containers = append(s.Containers, ContainerStatus{
			Name: st.Name, Attempt: st.Attempt, State: st.State, PID: st.PID, ExitCode: st.ExitCode,
			Signal: st.Signal, OOMKilled: st.OOMKilled(), OOMKills: st.OOMKills, Reason: st.Reason,
			StartedAt: st.StartedAt, FinishedAt: st.FinishedAt, Labels: st.labels,
		})
	}
	slices.SortFunc(s.Containers, func(a, b ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// alive returns the connection of a pod that is neither dead nor being removed.
func (p *pod) alive() (*client, error) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if p.client == nil || p.removing {
		return nil, fmt.Errorf("pod %s: %w", p.uid(), ErrPodDead)
	}
	return p.client, nil
}

// connect makes conn the pod's connection and takes over the shim's state.
func (p *pod) connect(ctx context.Context, conn net.Conn, proc *process) error {
	c := newClient(conn, p.observe, p.observeAll)
	go c.read()
	reply, err := c.call(ctx, shim.TypeHello, struct{}{})
	if err == nil && (reply.Pod == nil || reply.Pod.UID != p.uid()) {
		err = errors.New("another pod's shim answered")
	}
	if err != nil {
		return errors.Join(fmt.Errorf("greet shim: %w", err), ignoreClosed(c.Close()))
	}
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if p.r.closed {
		return errors.Join(ErrClosed, ignoreClosed(c.Close()))
	}
	p.client, p.process = c, proc
	p.r.work.Go(func() { <-c.done; p.disconnected(c) })
	p.r.notify()
	return nil
}

func (p *pod) labels(name string, attempt int) map[string]string {
	var rec containerRecord
	if err := shim.ReadRecord(filepath.Join(p.r.attemptDir(p.uid(), name, attempt), containerFile), &rec); err != nil {
		p.r.log.Warn("labels of a container are lost", "pod", p.uid(), "container", name, "error", err)
		return nil
	}
	return rec.Config.Labels
}

// observeAll takes the shim's answer to a greeting.
func (p *pod) observeAll(all []shim.Status) {
	p.r.mu.Lock()
	for name := range p.containers {
		if !slices.ContainsFunc(all, func(s shim.Status) bool { return s.Name == name }) {
			delete(p.containers, name)
		}
	}
	p.r.mu.Unlock()
	for _, s := range all {
		p.observe(s)
	}
}

// observe takes an event of the shim.
func (p *pod) observe(s shim.Status) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	old := p.containers[s.Name]
	switch {
	case s.State == shim.Gone:
		delete(p.containers, s.Name)
	case old != nil && old.Attempt == s.Attempt:
		old.Status = s
	default:
		p.containers[s.Name] = &containerState{Status: s, labels: p.labels(s.Name, s.Attempt)}
	}
	if s.State == shim.Exited && !p.removing && !p.r.closed {
		p.r.work.Go(func() { p.tidy(s.Name, s.Attempt) })
	}
	p.r.notify()
}

// tidy takes away what an ended attempt does not need any more.
func (p *pod) tidy(name string, attempt int) {
	err := errors.Join(
		p.group().Child(groupName(name, attempt)).Remove(),
		os.RemoveAll(p.r.attemptLayer(p.uid(), name, attempt)))
	if err != nil {
		// RemovePod and the next start try again.
		p.r.log.Debug("tidy up after a container", "pod", p.uid(), "container", name, "error", err)
	}
}

// disconnected decides what the end of a connection means: a shim that lives
// is connected again; the containers of a dead one are killed.
func (p *pod) disconnected(c *client) {
	p.r.mu.Lock()
	if p.r.closed || p.removing || p.client != c {
		p.r.mu.Unlock()
		return
	}
	proc := p.process
	p.r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if err := p.take(ctx); err != nil {
		p.r.log.Error("a shim was lost while its pod was busy", "pod", p.uid(), "error", err)
		return
	}
	defer p.release()
	p.r.mu.Lock()
	stale := p.r.closed || p.removing || p.client != c
	p.r.mu.Unlock()
	if stale {
		return
	}
	if conn, err := dialShim(ctx, p.dir()); err == nil {
		if err := p.connect(ctx, conn, proc); err == nil {
			p.r.log.Warn("connected to a shim again", "pod", p.uid())
			return
		}
	}
	p.r.log.Error("the shim of a pod died: killing its containers", "pod", p.uid(), "pid", proc.pid)
	if err := p.bury(ctx); err != nil {
		p.r.log.Error("clean up after a dead shim", "pod", p.uid(), "error", err)
	}
}

// bury kills what is left of a pod whose shim is dead and records its
// containers as exited. The pod's turn must be held, or nobody know the pod yet.
func (p *pod) bury(ctx context.Context) error {
	err := errors.Join(p.group().Kill(ctx), unmountBelow(p.dir()))
	ended := p.readExits()
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.client, p.process = nil, nil
	p.containers = ended
	p.r.notify()
	return errors.Join(err, p.group().Remove(), os.RemoveAll(p.r.layerDir(p.uid())))
}

// readExits reads how the latest attempts ended, from the records on disk. Of
// an end that nobody recorded only the fact is known.
func (p *pod) readExits() map[string]*containerState {
	out := map[string]*containerState{}
	root := filepath.Join(p.dir(), "containers")
	names, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.r.log.Error("read records", "pod", p.uid(), "error", err)
	}
	for _, n := range names {
		attempts, err := numbers(filepath.Join(root, n.Name()), "")
		if err != nil {
			p.r.log.Error("read records", "pod", p.uid(), "error", err)
			continue
		}
		// An attempt without a state record never ran.
		for _, a := range slices.Backward(attempts) {
			dir := p.r.attemptDir(p.uid(), n.Name(), a)
			var s shim.Status
			if shim.ReadRecord(filepath.Join(dir, shim.StateName), &s) != nil {
				continue
			}
			exit := filepath.Join(dir, shim.ExitName)
			if err := shim.ReadRecord(exit, &s); err != nil {
				s.State, s.PID, s.ExitCode, s.Signal = shim.Exited, 0, 137, 9
				s.Reason, s.FinishedAt = shim.ReasonUnknown, time.Now()
				if err := shim.WriteRecord(exit, s); err != nil {
					p.r.log.Error("record an exit", "pod", p.uid(), "error", err)
				}
			}
			out[n.Name()] = &containerState{Status: s, labels: p.labels(n.Name(), a)}
			break
		}
	}
	return out
}
