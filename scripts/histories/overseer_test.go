package histories

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/controllers"
	"github.com/shepherd-project/shepherd/fsm"
)

// overseer runs the controllers of each server and keeps an eye on them: on who
// is at work in which term, and on every change that any server applies.
type overseer struct {
	t       testing.TB
	seed    uint64
	decoder *resource.Decoder

	mu      sync.Mutex
	sets    uint64             // of controllers that were made
	working map[uint64]*server // by term
	events  map[uint64]fsm.Event
}

func newOverseer(t testing.TB, seed int64) *overseer {
	return &overseer{t: t, seed: uint64(seed), decoder: resource.NewDecoder(16 << 20), working: map[uint64]*server{}, events: map[uint64]fsm.Event{}}
}

// accompany runs beside a server.
func (o *overseer) accompany(up *server) {
	var watching sync.WaitGroup
	watching.Go(func() { o.watch(up) })
	defer watching.Wait()
	o.mu.Lock()
	o.sets++
	random := rand.New(rand.NewPCG(o.seed, o.sets))
	o.mu.Unlock()
	manager, err := controllers.NewManager(up.node, controllers.Deps{
		Store: up.store, Decoder: resource.NewDecoder(8 << 20), Ages: up.node.Ages, Now: up.node.Now, Rand: random,
		Propose: func(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
			o.atWork(cmd.Term, up)
			return up.node.Propose(ctx, cmd)
		},
		Config: controllers.DefaultConfig(), Logger: logger().Named("controllers"), Fatal: func(err error) { o.t.Error(err) },
	})
	if err != nil {
		o.t.Error(err)
		return
	}
	manager.Run(up.stopCh)
}

// atWork notes that a server's controllers act in a term.
func (o *overseer) atWork(term uint64, up *server) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if other, ok := o.working[term]; ok && other != up {
		o.t.Errorf("the controllers of %s and of %s are at work in term %d", other.node.Name(), up.node.Name(), term)
	}
	o.working[term] = up
}

// watch collects what the server applies while it runs.
func (o *overseer) watch(up *server) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopped := make(chan struct{})
	defer func() { <-stopped }()
	go func() { <-up.stopCh; cancel(); close(stopped) }()
	for {
		err := o.collect(ctx, up.store)
		switch {
		case ctx.Err() != nil:
			return
		case !errors.Is(err, fsm.ErrCompacted): // it was given a snapshot; others have seen what it skipped
			o.t.Errorf("%s: %v", up.node.Name(), err)
			<-ctx.Done()
		}
	}
}

func (o *overseer) collect(ctx context.Context, store *fsm.Store) error {
	cursor, err := store.Cursor(store.View().Revision())
	for err == nil {
		var events []fsm.Event
		if events, err = cursor.Next(100); len(events) == 0 && err == nil {
			err = cursor.Wait(ctx)
		}
		o.mu.Lock()
		for _, e := range events {
			o.events[e.Revision] = e
		}
		o.mu.Unlock()
	}
	return err
}

// check goes through everything that has happened, in order.
func (o *overseer) check() {
	o.mu.Lock()
	defer o.mu.Unlock()
	revisions := slices.Sorted(maps.Keys(o.events))
	s := state{pods: map[string]*corev1.Pod{}, sets: map[types.UID]*appsv1.ReplicaSet{}}
	for i, revision := range revisions {
		if i > 0 && revision != revisions[i-1]+1 {
			o.t.Errorf("no server was seen to apply what follows revision %d", revisions[i-1])
		}
		e := o.events[revision]
		if r := e.Object.Key.Resource; r != "pods" && r != "replicasets.apps" {
			continue
		}
		obj, err := o.decoder.Decode(e.Object)
		if err == nil {
			err = s.apply(obj, e.Deleted)
		}
		if err != nil {
			o.t.Errorf("revision %d, %s: %v", revision, e.Object.Key, err)
		}
	}
	o.t.Logf("%d revisions, %d terms with controllers, %d pods made, %d bound", len(revisions), len(o.working), s.made, s.bound)
}

// state is what there is at one revision.
type state struct {
	pods        map[string]*corev1.Pod
	sets        map[types.UID]*appsv1.ReplicaSet
	made, bound int
}

// apply takes the next change. It fails if that must not happen.
func (s *state) apply(obj runtime.Object, deleted bool) error {
	switch obj := obj.(type) {
	case *appsv1.ReplicaSet:
		if s.sets[obj.UID] = obj; deleted {
			delete(s.sets, obj.UID)
		}
	case *corev1.Pod:
		return s.applyPod(obj, deleted)
	}
	return nil
}

func (s *state) applyPod(pod *corev1.Pod, deleted bool) error {
	old := s.pods[pod.Name]
	if s.pods[pod.Name] = pod; deleted {
		delete(s.pods, pod.Name)
		return nil
	}
	if old == nil {
		s.made++
		return s.checkCount(pod)
	}
	switch was, is := old.Spec.NodeName, pod.Spec.NodeName; {
	case was == is:
		return nil
	case was != "":
		return fmt.Errorf("bound to %q after %q", is, was)
	}
	s.bound++
	return nil
}

// checkCount: who made the pod may have as many.
func (s *state) checkCount(made *corev1.Pod) error {
	owner := metav1.GetControllerOf(made)
	if owner == nil {
		return errors.New("it belongs to nobody")
	}
	set := s.sets[owner.UID]
	if set == nil {
		return fmt.Errorf("its owner %s is not there", owner.Name)
	}
	count := int32(0)
	for _, pod := range s.pods {
		if o := metav1.GetControllerOf(pod); o != nil && o.UID == set.UID && pod.DeletionTimestamp == nil {
			count++
		}
	}
	if count > *set.Spec.Replicas {
		return fmt.Errorf("it is pod %d of %s, which asks for %d", count, set.Name, *set.Spec.Replicas)
	}
	return nil
}
