package controllers

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	leaseNamespace = corev1.NamespaceNodeLease
	// leaseBatch is how many leases one command writes.
	leaseBatch = 200
)

// renewLeases writes the leases of the nodes that are alive, for clients that
// look there. Heartbeats themselves never reach the log: all leases are renewed
// together, once in a lease period.
func (n *nodeWork) renewLeases(nodes []*corev1.Node) error {
	if n.ages == nil || !n.liveNamespaces()[leaseNamespace] {
		return nil
	}
	leases, err := list[*coordinationv1.Lease](n.world, resLeases, leaseNamespace)
	if err != nil {
		return err
	}
	have := map[string]*coordinationv1.Lease{}
	for _, lease := range leases {
		have[lease.Name] = lease
	}
	due := false
	for _, node := range nodes {
		if lease := have[node.Name]; lease != nil && n.alive(node) {
			due = due || lease.Spec.RenewTime == nil || n.now.Sub(lease.Spec.RenewTime.Time) >= n.config.LeasePeriod
		}
	}
	c := &change{}
	for _, node := range nodes {
		_, heard := n.ages[node.Name]
		if !heard || !n.alive(node) || node.DeletionTimestamp != nil {
			continue
		}
		n.renew(c, node, have[node.Name], due)
		if len(c.ops) >= leaseBatch {
			n.plan.add(c)
			c = &change{}
		}
	}
	n.plan.add(c)
	return nil
}

func (n *nodeWork) renew(c *change, node *corev1.Node, lease *coordinationv1.Lease, due bool) {
	renewed := metav1.NewMicroTime(n.now.UTC())
	// A lease lasts until its next renewal and for as long as a node may be silent.
	holder, duration := node.Name, int32((n.config.LeasePeriod + n.config.NodeMonitorGrace).Seconds())
	spec := coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &duration, RenewTime: &renewed}
	switch {
	case lease == nil:
		created := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: node.Name,
			OwnerReferences: nodeOwner(node)}, Spec: spec}
		n.born(created)
		c.namespace(leaseNamespace).exists(node).create(created)
	case due && lease.DeletionTimestamp == nil:
		updated := lease.DeepCopy()
		updated.Spec.HolderIdentity, updated.Spec.LeaseDurationSeconds, updated.Spec.RenewTime = &holder, &duration, &renewed
		updated.OwnerReferences = nodeOwner(node)
		c.update(lease, updated)
	}
}
