package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeReporter keeps this machine's Node object: it creates it, sets its own
// labels and its status, and leaves alone what others have set.
type nodeReporter struct {
	cfg     *Config
	client  nodeClient
	machine *machine
	logger  hclog.Logger
	kick    chan struct{}
	// problem says why no pod can run here, nil when they can.
	problem func() error

	again      retry
	registered bool
	reported   time.Time // when the status was last written
}

// run keeps the Node up to date until ctx ends.
func (n *nodeReporter) run(ctx context.Context) {
	n.again = retry{base: 200 * time.Millisecond, limit: 10 * time.Second}
	for ctx.Err() == nil {
		wait := n.cfg.NodeStatusInterval
		var err error
		guard(n.logger, "node", func() {
			err = errors.New("panic")
			for range 3 { // others write the Node too
				if err = n.sync(ctx); !apierrors.IsConflict(err) {
					break
				}
			}
		})
		if err != nil && ctx.Err() == nil {
			wait = n.again.next()
			n.logger.Warn("node not reported, trying again", "error", err)
		} else {
			n.again.reset()
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-n.kick:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

func (n *nodeReporter) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	node, err := n.client.Get(ctx, n.cfg.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		fresh := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.cfg.NodeName, Labels: n.labels()},
			Spec:       corev1.NodeSpec{Taints: n.cfg.Taints},
		}
		n.status(&fresh.Status)
		node, err = n.client.Create(ctx, fresh, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	if !n.registered {
		n.registered = true
		n.logger.Info("node registered", "node", node.Name, "address", n.machine.ip)
	}
	if node, err = n.syncLabels(ctx, node); err != nil {
		return err
	}
	updated := node.DeepCopy()
	n.status(&updated.Status)
	unchanged := apiequality.Semantic.DeepEqual(node.Status, updated.Status)
	if unchanged && time.Since(n.reported) < n.cfg.NodeStatusInterval {
		return nil
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	for i := range updated.Status.Conditions {
		if updated.Status.Conditions[i].Reason == reasonAgent || updated.Status.Conditions[i].Type == corev1.NodeReady {
			updated.Status.Conditions[i].LastHeartbeatTime = now
		}
	}
	if _, err := n.client.UpdateStatus(ctx, updated, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("report node status: %w", err)
	}
	n.reported = time.Now()
	return nil
}

// labels are those that belong to the agent.
func (n *nodeReporter) labels() map[string]string {
	labels := map[string]string{
		corev1.LabelHostname:   n.cfg.NodeName,
		corev1.LabelOSStable:   runtime.GOOS,
		corev1.LabelArchStable: runtime.GOARCH,
	}
	maps.Copy(labels, n.cfg.Labels)
	return labels
}

func (n *nodeReporter) syncLabels(ctx context.Context, node *corev1.Node) (*corev1.Node, error) {
	updated := node.DeepCopy()
	if updated.Labels == nil {
		updated.Labels = map[string]string{}
	}
	maps.Copy(updated.Labels, n.labels())
	if maps.Equal(updated.Labels, node.Labels) {
		return node, nil
	}
	updated, err := n.client.Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("label node: %w", err)
	}
	return updated, nil
}

const reasonAgent = "ShepherdAgent"

// status puts the machine's state into st and keeps the rest.
func (n *nodeReporter) status(st *corev1.NodeStatus) {
	if st.Capacity == nil {
		st.Capacity = corev1.ResourceList{}
	}
	if st.Allocatable == nil {
		st.Allocatable = corev1.ResourceList{}
	}
	for name, q := range n.machine.capacity {
		st.Capacity[name], st.Allocatable[name] = q, q
	}
	st.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: n.machine.ip.String()},
		{Type: corev1.NodeHostName, Address: n.machine.hostname},
	}
	st.NodeInfo = n.machine.info
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "the agent runs pods"}
	if err := n.problem(); err != nil {
		ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "KubeletNotReady", err.Error()
	}
	setNodeCondition(st, ready)
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		setNodeCondition(st, corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reasonAgent})
	}
}

// setNodeCondition keeps the times of a condition that has not changed.
func setNodeCondition(st *corev1.NodeStatus, c corev1.NodeCondition) {
	at := slices.IndexFunc(st.Conditions, func(o corev1.NodeCondition) bool { return o.Type == c.Type })
	c.LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
	c.LastHeartbeatTime = c.LastTransitionTime
	if at < 0 {
		st.Conditions = append(st.Conditions, c)
		return
	}
	if old := st.Conditions[at]; old.Status == c.Status {
		c.LastTransitionTime, c.LastHeartbeatTime = old.LastTransitionTime, old.LastHeartbeatTime
	}
	st.Conditions[at] = c
}
