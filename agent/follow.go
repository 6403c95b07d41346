package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// watchLimit is about how long one watch lasts before it is replaced by a list
// and a new one.
const watchLimit = 5 * time.Minute

// errWatchEnded says that a watch ended in good order.
var errWatchEnded = errors.New("watch ended")

// follower keeps a copy of some objects up to date. The list is always a
// linearizable read, after every reconnect: what it shows is never older than
// anything that was acknowledged before. Its functions are called from one
// goroutine.
type follower struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// replace takes the whole list; an error refuses it.
	replace func(revision string, items []runtime.Object) error
	// apply takes one change.
	apply func(kind watch.EventType, obj runtime.Object) error
}

// run lists once and watches until the watch ends or breaks.
func (f *follower) run(ctx context.Context) error {
	revision, err := f.relist(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seconds := int64((watchLimit + rand.N(watchLimit)) / time.Second)
	w, err := f.watch(ctx, metav1.ListOptions{ResourceVersion: revision, AllowWatchBookmarks: true, TimeoutSeconds: &seconds})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer w.Stop()
	for {
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				return errWatchEnded
			}
			if err := f.event(event); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *follower) relist(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// No resource version: the read index, not whatever the server has.
	list, err := f.list(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list: %w", err)
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return "", fmt.Errorf("list: %w", err)
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return "", fmt.Errorf("list: %w", err)
	}
	if err := f.replace(m.GetResourceVersion(), items); err != nil {
		return "", err
	}
	return m.GetResourceVersion(), nil
}

func (f *follower) event(e watch.Event) error {
	switch e.Type {
	case watch.Added, watch.Modified, watch.Deleted:
		return f.apply(e.Type, e.Object)
	case watch.Error:
		return fmt.Errorf("watch: %w", apierrors.FromObject(e.Object))
	}
	return nil // a bookmark
}
