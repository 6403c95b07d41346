package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// statusSenders is how many statuses are sent at the same time.
const statusSenders = 4

// statusReporter sends pods' statuses to the server: at once, only what
// differs, the newest only, and one at a time for each pod.
type statusReporter struct {
	client *client
	logger hclog.Logger
	wake   chan struct{} // holds a token for each entry that may be sent
	// sent is called with the pod as the server has it after a report.
	sent func(*corev1.Pod)

	mu      sync.Mutex
	pending map[types.UID]*report
	queue   []types.UID
}

type report struct {
	pod    *corev1.Pod // that the status was computed from
	status corev1.PodStatus
	next   bool // status is newer than what is being sent
	busy   bool
	again  retry
}

func newStatusReporter(client *client, logger hclog.Logger) *statusReporter {
	return &statusReporter{client: client, logger: logger, wake: make(chan struct{}, 1),
		pending: map[types.UID]*report{}, sent: func(*corev1.Pod) {}}
}

// set says what a pod's status should be. It never blocks.
func (s *statusReporter) set(pod *corev1.Pod, status corev1.PodStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.pending[pod.UID]
	if apiequality.Semantic.DeepEqual(pod.Status, status) {
		if r != nil && !r.busy { // what was to be said is true already
			r.next = false
		}
		return
	}
	if r == nil {
		r = &report{again: retry{base: 200 * time.Millisecond, limit: 10 * time.Second}}
		s.pending[pod.UID] = r
	} else if r.next && r.pod.ResourceVersion == pod.ResourceVersion && apiequality.Semantic.DeepEqual(r.status, status) {
		return
	} else if r.busy && apiequality.Semantic.DeepEqual(r.status, status) {
		return // just being sent
	}
	r.pod, r.status, r.next = pod, status, true
	if !r.busy {
		s.enqueueLocked(pod.UID)
	}
}

func (s *statusReporter) enqueueLocked(uid types.UID) {
	for _, q := range s.queue {
		if q == uid {
			return
		}
	}
	s.queue = append(s.queue, uid)
	kick(s.wake)
}

// run sends until ctx ends.
func (s *statusReporter) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for range statusSenders {
		wg.Go(func() {
			for ctx.Err() == nil {
				guard(s.logger, "status", func() { s.sendNext(ctx) })
			}
		})
	}
}

// sendNext sends one status, or waits for one.
func (s *statusReporter) sendNext(ctx context.Context) {
	s.mu.Lock()
	if len(s.queue) == 0 {
		s.mu.Unlock()
		select {
		case <-s.wake:
		case <-ctx.Done():
		}
		return
	}
	uid := s.queue[0]
	s.queue = s.queue[1:]
	if len(s.queue) > 0 {
		kick(s.wake) // another sender takes the next
	}
	r := s.pending[uid]
	if r == nil || !r.next || r.busy {
		if r != nil && !r.busy && !r.next {
			delete(s.pending, uid)
		}
		s.mu.Unlock()
		return
	}
	r.busy, r.next = true, false
	pod, status := r.pod, r.status
	s.mu.Unlock()

	err := errors.New("panic")
	defer func() { s.finish(ctx, uid, r, err) }()
	err = s.send(ctx, pod, status)
}

// finish decides what comes after an attempt. A failed report is due again
// after a pause, unless a newer one takes its place.
func (s *statusReporter) finish(ctx context.Context, uid types.UID, r *report, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.busy = false
	switch {
	case err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err):
		// Gone, another pod of that name, or out of date: the next look at
		// the pod decides anew.
		if err != nil {
			s.logger.Debug("status refused", "uid", uid, "error", err)
		}
		r.again.reset()
		if r.next {
			s.enqueueLocked(uid)
		} else {
			delete(s.pending, uid)
		}
	case ctx.Err() == nil:
		s.logger.Warn("status not reported, trying again", "pod", r.pod.Namespace+"/"+r.pod.Name, "error", err)
		r.next = true
		time.AfterFunc(r.again.next(), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.pending[uid] == r && r.next && !r.busy {
				s.enqueueLocked(uid)
			}
		})
	}
}

// send patches the pod's status. The UID in the patch makes the server refuse
// it for another pod of the same name.
func (s *statusReporter) send(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) error {
	patch, err := statusPatch(pod, status)
	if err != nil || patch == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	updated, err := s.client.Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return err
	}
	s.sent(updated)
	return nil
}

func statusPatch(pod *corev1.Pod, status corev1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(corev1.Pod{Status: pod.Status})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	after := corev1.Pod{Status: status}
	after.UID = pod.UID
	data, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, data, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("status patch: %w", err)
	}
	return patch, nil
}
