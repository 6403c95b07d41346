package api

import (
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

var (
	bindingGVK  = corev1.SchemeGroupVersion.WithKind("Binding")
	evictionGVK = policyv1.SchemeGroupVersion.WithKind("Eviction")
)

// bindingAction assigns a pod to a node, once.
type bindingAction struct{}

func (bindingAction) decide(w *write, v *fsm.View) (*plan, error) {
	binding := &corev1.Binding{}
	warnings, err := decodeBody(w.header("Content-Type"), w.req.Body, binding, bindingGVK, w.options.validation)
	if err != nil {
		return nil, err
	}
	w.warnings = append(w.warnings, warnings...)
	if err := w.fillNames(binding); err != nil {
		return nil, err
	}
	if err := checkBinding(binding); err != nil {
		return nil, err
	}
	live, old, err := w.liveObject(v)
	if err != nil {
		return nil, err
	}
	pod := old.DeepCopyObject().(*corev1.Pod)
	conflict := func(format string, args ...any) error {
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, w.info.Name, fmt.Errorf(format, args...))
	}
	if binding.UID != "" && binding.UID != pod.UID {
		return nil, conflict("Precondition failed: UID in precondition: %v, UID in object meta: %v", binding.UID, pod.UID)
	}
	nodeKey := fsm.Key{Resource: "nodes", Name: binding.Target.Name}
	node := v.Get(nodeKey)
	if node == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, binding.Target.Name)
	}
	if err := resource.Bind(pod, binding.Target.Name, metav1.NewTime(w.s.now().UTC().Truncate(time.Second))); err != nil {
		return nil, conflict("%w", err)
	}
	// The scheduler may send labels and annotations along.
	pod.Labels = merged(pod.Labels, binding.Labels)
	pod.Annotations = merged(pod.Annotations, binding.Annotations)
	p, err := w.commit(v, live, pod, nil)
	if err != nil {
		return nil, err
	}
	p.pre = append(p.pre, fsm.Precondition{Key: nodeKey, UID: node.UID, Live: true})
	return p, nil
}

func (bindingAction) answer(*write, outcome) (int, runtime.Object, error) {
	return http.StatusCreated, success(), nil
}

func checkBinding(b *corev1.Binding) error {
	var errs field.ErrorList
	target := field.NewPath("target")
	if b.Target.Kind != "" && b.Target.Kind != "Node" {
		errs = append(errs, field.NotSupported(target.Child("kind"), b.Target.Kind, []string{"Node"}))
	}
	if b.Target.Name == "" {
		errs = append(errs, field.Required(target.Child("name"), ""))
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(bindingGVK.GroupKind(), b.Name, errs)
}

func merged(old, more map[string]string) map[string]string {
	if len(more) == 0 {
		return old
	}
	if old == nil {
		old = make(map[string]string, len(more))
	}
	for k, v := range more {
		old[k] = v
	}
	return old
}

// evictionAction deletes a pod at the request of somebody who drains a node.
// There are no disruption budgets yet that could refuse it.
type evictionAction struct{}

func (evictionAction) decide(w *write, v *fsm.View) (*plan, error) {
	eviction := &policyv1.Eviction{}
	warnings, err := decodeBody(w.header("Content-Type"), w.req.Body, eviction, evictionGVK, w.options.validation)
	if err != nil {
		return nil, err
	}
	w.warnings = append(w.warnings, warnings...)
	if err := w.fillNames(eviction); err != nil {
		return nil, err
	}
	opts := eviction.DeleteOptions
	if opts == nil {
		opts = &metav1.DeleteOptions{}
	}
	if err := checkDeleteOptions(opts); err != nil {
		return nil, err
	}
	w.options.dryRun = w.options.dryRun || isDryRun(opts.DryRun)
	return w.remove(v, opts)
}

func (evictionAction) answer(*write, outcome) (int, runtime.Object, error) {
	return http.StatusCreated, success(), nil
}

// success is the answer to what has no object to show.
func success() *metav1.Status {
	status := &metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated}
	status.SetGroupVersionKind(statusGVK)
	return status
}
