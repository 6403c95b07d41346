package api

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// protectedNamespaces are there as long as the cluster is.
var protectedNamespaces = []string{"default", "kube-system", "kube-public", nodeLeaseNamespace}

// deleteAction removes an object, or marks it as being deleted while a grace
// period, finalizers or a namespace's content hold it.
type deleteAction struct {
	parsed bool
	opts   *metav1.DeleteOptions
	err    error
}

func (a *deleteAction) decide(w *write, v *fsm.View) (*plan, error) {
	if !a.parsed {
		a.parsed = true
		a.opts, a.err = w.deleteOptions()
	}
	if a.err != nil {
		return nil, a.err
	}
	w.options.dryRun = w.options.dryRun || isDryRun(a.opts.DryRun)
	return w.remove(v, a.opts)
}

func (a *deleteAction) answer(w *write, o outcome) (int, runtime.Object, error) {
	if !o.gone {
		return w.objectAnswer(o)
	}
	return http.StatusOK, deletedStatus(w.info, o.objects[0]), nil
}

// deletedStatus is the answer when the object is gone. Clients that wait for
// the end of this very object read the UID.
func deletedStatus(info requestInfo, o *fsm.Object) *metav1.Status {
	status := &metav1.Status{
		Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{
			Name: o.Key.Name, Group: info.GVR.Group, Kind: info.GVR.Resource, UID: types.UID(o.UID),
		},
	}
	status.SetGroupVersionKind(statusGVK)
	return status
}

// deleteOptions reads the options of the query and, over them, of the body.
func (w *write) deleteOptions() (*metav1.DeleteOptions, error) {
	opts, err := queryDeleteOptions(w.info.Query)
	if err != nil {
		return nil, err
	}
	if err := decodeDeleteOptions(w.header("Content-Type"), w.req.Body, opts); err != nil {
		return nil, err
	}
	return opts, checkDeleteOptions(opts)
}

func queryDeleteOptions(query url.Values) (*metav1.DeleteOptions, error) {
	opts := &metav1.DeleteOptions{DryRun: query["dryRun"]}
	if text := query.Get("gracePeriodSeconds"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("gracePeriodSeconds %q is not a number", text))
		}
		opts.GracePeriodSeconds = &seconds
	}
	if query.Has("orphanDependents") {
		orphan := queryBool(query, "orphanDependents")
		opts.OrphanDependents = &orphan
	}
	if policy := metav1.DeletionPropagation(query.Get("propagationPolicy")); policy != "" {
		opts.PropagationPolicy = &policy
	}
	return opts, nil
}

// checkDeleteOptions validates options and settles the old spelling of the
// propagation policy and negative grace periods.
func checkDeleteOptions(opts *metav1.DeleteOptions) error {
	if errs := metav1validation.ValidateDeleteOptions(opts); len(errs) > 0 {
		return apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("DeleteOptions").GroupKind(), "", errs)
	}
	if opts.OrphanDependents != nil {
		policy := metav1.DeletePropagationBackground
		if *opts.OrphanDependents {
			policy = metav1.DeletePropagationOrphan
		}
		opts.PropagationPolicy, opts.OrphanDependents = &policy, nil
	}
	if opts.GracePeriodSeconds != nil && *opts.GracePeriodSeconds < 0 {
		one := int64(1)
		opts.GracePeriodSeconds = &one
	}
	return nil
}

// remove plans the deletion of the object that the route names.
func (w *write) remove(v *fsm.View, opts *metav1.DeleteOptions) (*plan, error) {
	if w.info.Kind.Resource == "namespaces" && slices.Contains(protectedNamespaces, w.info.Name) {
		return nil, apierrors.NewForbidden(w.info.groupResource(), w.info.Name, fmt.Errorf("this namespace may not be deleted"))
	}
	live, old, err := w.liveObject(v)
	if err != nil {
		return nil, err
	}
	if err := w.checkDeletePreconditions(live, opts.Preconditions); err != nil {
		return nil, err
	}
	obj := old.DeepCopyObject()
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	m.SetFinalizers(finalizersFor(m.GetFinalizers(), opts.PropagationPolicy))
	var grace int64
	if w.info.Kind.GracePeriod != nil {
		grace = w.info.Kind.GracePeriod(old, opts.GracePeriodSeconds)
		// Once the deletion has begun, only a number that was asked for
		// shortens it.
		if running := m.GetDeletionGracePeriodSeconds(); running != nil && m.GetDeletionTimestamp() != nil && opts.GracePeriodSeconds == nil {
			grace = *running
		}
	}
	resource.SetDeleted(m, w.s.now(), grace)
	if ns, ok := obj.(*corev1.Namespace); ok {
		ns.Status.Phase = corev1.NamespaceTerminating
	}
	if errs := w.checkFinalizers(m); len(errs) > 0 {
		return nil, w.invalid(w.info.Name, errs)
	}
	return w.commit(v, live, obj, nil)
}

// checkFinalizers finds deletion policies that exclude one another.
func (w *write) checkFinalizers(m metav1.Object) field.ErrorList {
	finalizers := m.GetFinalizers()
	if slices.Contains(finalizers, metav1.FinalizerOrphanDependents) && slices.Contains(finalizers, metav1.FinalizerDeleteDependents) {
		return field.ErrorList{field.Invalid(field.NewPath("metadata", "finalizers"), finalizers, "orphan and foregroundDeletion cannot be both set")}
	}
	return nil
}

func (w *write) checkDeletePreconditions(live *fsm.Object, pre *metav1.Preconditions) error {
	if pre == nil {
		return nil
	}
	if pre.UID != nil && string(*pre.UID) != live.UID {
		return apierrors.NewConflict(w.info.groupResource(), w.info.Name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", *pre.UID, live.UID))
	}
	if version := resource.FormatRevision(live.Modified); pre.ResourceVersion != nil && *pre.ResourceVersion != version {
		return apierrors.NewConflict(w.info.groupResource(), w.info.Name,
			fmt.Errorf("Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *pre.ResourceVersion, version))
	}
	return nil
}

// finalizersFor returns the finalizers of an object whose deletion is asked for
// with that policy: the garbage collector acts on them. Without a policy, those
// of an earlier deletion stay.
func finalizersFor(old []string, policy *metav1.DeletionPropagation) []string {
	if policy == nil {
		return old
	}
	kept := slices.DeleteFunc(slices.Clone(old), func(f string) bool {
		return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	switch *policy {
	case metav1.DeletePropagationForeground:
		kept = append(kept, metav1.FinalizerDeleteDependents)
	case metav1.DeletePropagationOrphan:
		kept = append(kept, metav1.FinalizerOrphanDependents)
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// removal is the operations that take a stored object away, with what is
// reserved for it.
func (w *write) removal(v *fsm.View, live *fsm.Object) ([]fsm.Op, error) {
	obj, err := w.s.decoder.Decode(live)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return append([]fsm.Op{resource.DeleteOp(live)}, releases(v, reservationsOf(obj), live.UID)...), nil
}
