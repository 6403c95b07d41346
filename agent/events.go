package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
)

// eventQueue is how many events wait at most; further ones are dropped, since
// nothing may wait for an event to be written.
const eventQueue = 256

// recorder writes events about pods. Its event method never blocks.
type recorder struct {
	client *client
	node   string
	logger hclog.Logger
	queue  chan *corev1.Event
	limit  *rate.Limiter
	seen   *lru.Cache[string, *corev1.Event] // used by run only
}

func newRecorder(client *client, node string, logger hclog.Logger) (*recorder, error) {
	seen, err := lru.New[string, *corev1.Event](512)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	return &recorder{client: client, node: node, logger: logger, queue: make(chan *corev1.Event, eventQueue),
		limit: rate.NewLimiter(10, 50), seen: seen}, nil
}

// event reports something about a pod, or about one of its containers.
func (r *recorder) event(pod *corev1.Pod, container, kind, reason, format string, args ...any) {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	ref := corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}
	if container != "" {
		ref.FieldPath = fmt.Sprintf("spec.containers{%s}", container)
	}
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name + "." + rand.String(10)},
		InvolvedObject: ref,
		Type:           kind, Reason: reason, Message: fmt.Sprintf(format, args...),
		Source:              corev1.EventSource{Component: "kubelet", Host: r.node},
		ReportingController: "kubelet", ReportingInstance: r.node,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	select {
	case r.queue <- e:
	default:
		r.logger.Debug("event dropped", "pod", pod.Namespace+"/"+pod.Name, "reason", reason)
	}
}

// run writes events until ctx ends.
func (r *recorder) run(ctx context.Context) {
	for {
		select {
		case e := <-r.queue:
			if !r.limit.Allow() {
				continue
			}
			guard(r.logger, "events", func() {
				if err := r.write(ctx, e); err != nil && ctx.Err() == nil {
					r.logger.Debug("event not written", "reason", e.Reason, "error", err)
				}
			})
		case <-ctx.Done():
			return
		}
	}
}

// write creates the event, or counts it on the one that says the same.
func (r *recorder) write(ctx context.Context, e *corev1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	key := fmt.Sprintf("%s\x00%s\x00%s\x00%s", e.InvolvedObject.UID, e.InvolvedObject.FieldPath, e.Reason, e.Message)
	if old, ok := r.seen.Get(key); ok {
		patch, err := json.Marshal(map[string]any{"count": old.Count + 1, "lastTimestamp": e.LastTimestamp})
		if err != nil {
			return err
		}
		updated, err := r.client.Events(old.Namespace).Patch(ctx, old.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			r.seen.Add(key, updated)
			return nil
		}
		if !apierrors.IsNotFound(err) { // else it has expired: begin anew
			return err
		}
	}
	created, err := r.client.Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	r.seen.Add(key, created)
	return nil
}
