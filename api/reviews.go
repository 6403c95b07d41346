package api

import (
	"fmt"
	"io"
	"net/http"
	"net/url"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// virtualResource is a resource that is only ever created, and never stored:
// the answer is computed from the request.
type virtualResource struct {
	gvr      schema.GroupVersionResource
	singular string
	newBody  func() runtime.Object
	answer   func(s *Server, view *fsm.View, id Identity, body runtime.Object)
}

func (v virtualResource) gvk() schema.GroupVersionKind {
	kinds, _, err := resource.Scheme.ObjectKinds(v.newBody())
	if err != nil {
		panic(fmt.Sprintf("api: %s is not in the scheme: %v", v.gvr, err)) // a mistake in the table below
	}
	return kinds[0]
}

var virtualResources = []virtualResource{
	{
		gvr:      authenticationv1.SchemeGroupVersion.WithResource("selfsubjectreviews"),
		singular: "selfsubjectreview",
		newBody:  func() runtime.Object { return &authenticationv1.SelfSubjectReview{} },
		answer: func(_ *Server, _ *fsm.View, id Identity, body runtime.Object) {
			body.(*authenticationv1.SelfSubjectReview).Status.UserInfo = authenticationv1.UserInfo{Username: id.User, Groups: id.Groups}
		},
	},
	{
		gvr:      authorizationv1.SchemeGroupVersion.WithResource("selfsubjectaccessreviews"),
		singular: "selfsubjectaccessreview",
		newBody:  func() runtime.Object { return &authorizationv1.SelfSubjectAccessReview{} },
		answer: func(s *Server, view *fsm.View, id Identity, body runtime.Object) {
			review := body.(*authorizationv1.SelfSubjectAccessReview)
			review.Status = s.reviewAccess(view, id, review.Spec)
		},
	},
	{
		gvr:      authorizationv1.SchemeGroupVersion.WithResource("selfsubjectrulesreviews"),
		singular: "selfsubjectrulesreview",
		newBody:  func() runtime.Object { return &authorizationv1.SelfSubjectRulesReview{} },
		answer: func(_ *Server, _ *fsm.View, id Identity, body runtime.Object) {
			body.(*authorizationv1.SelfSubjectRulesReview).Status = rulesOf(id)
		},
	},
}

func findVirtual(gvr schema.GroupVersionResource) (virtualResource, bool) {
	for _, v := range virtualResources {
		if v.gvr == gvr {
			return v, true
		}
	}
	return virtualResource{}, false
}

func isVirtual(gvr schema.GroupVersionResource) bool {
	_, ok := findVirtual(gvr)
	return ok
}

// serveVirtual answers a POST of a virtual resource with its completed body.
func (s *Server) serveVirtual(w http.ResponseWriter, r *http.Request, info requestInfo) {
	v, ok := findVirtual(info.GVR)
	switch {
	case !ok, info.Name != "", info.Namespace != "":
		s.writeError(w, r, errPathNotFound(info.Verb, info.groupResource(), info.Name))
		return
	case info.Verb != "create":
		s.writeError(w, r, errMethodNotAllowed(info.groupResource(), info.Verb))
		return
	}
	if _, ok := negotiate(r.Header.Get("Accept"), shapeObject); !ok {
		s.writeError(w, r, errNotAcceptable(acceptedTypes))
		return
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	gvk, body := v.gvk(), v.newBody()
	if _, got, err := resource.Codecs.UniversalDeserializer().Decode(data, &gvk, body); err != nil {
		s.writeError(w, r, apierrors.NewBadRequest(err.Error()))
		return
	} else if *got != gvk {
		s.writeError(w, r, apierrors.NewBadRequest(fmt.Sprintf("the body is a %s, not a %s", got.Kind, gvk.Kind)))
		return
	}
	if err := s.cfg.Consensus.ReadIndex(r.Context()); err != nil {
		s.writeError(w, r, err)
		return
	}
	v.answer(s, s.cfg.Store.View(), identityFrom(r.Context()), body)
	s.writeObject(w, r, info, http.StatusCreated, body)
}

// reviewAccess answers "may I do that?".
func (s *Server) reviewAccess(view *fsm.View, id Identity, spec authorizationv1.SelfSubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
	if spec.NonResourceAttributes != nil {
		return authorizationv1.SubjectAccessReviewStatus{Allowed: id.isAdmin() || spec.NonResourceAttributes.Path != "/metrics"}
	}
	if spec.ResourceAttributes == nil {
		return authorizationv1.SubjectAccessReviewStatus{EvaluationError: "neither resourceAttributes nor nonResourceAttributes are given"}
	}
	a := spec.ResourceAttributes
	info := requestInfo{
		Verb: a.Verb, Namespace: a.Namespace, Name: a.Name, Subresource: a.Subresource, Query: url.Values{},
		GVR: schema.GroupVersionResource{Group: a.Group, Version: a.Version, Resource: a.Resource},
	}
	if a.FieldSelector != nil {
		info.Query.Set("fieldSelector", a.FieldSelector.RawSelector)
	}
	if err := s.authorize(view, id, info); err != nil {
		return authorizationv1.SubjectAccessReviewStatus{Reason: toStatus(err).Message}
	}
	return authorizationv1.SubjectAccessReviewStatus{Allowed: true}
}

// rulesOf lists what the identity may do. An agent's rules depend on the
// objects, so its list is marked incomplete.
func rulesOf(id Identity) authorizationv1.SubjectRulesReviewStatus {
	status := authorizationv1.SubjectRulesReviewStatus{
		ResourceRules:    []authorizationv1.ResourceRule{},
		NonResourceRules: []authorizationv1.NonResourceRule{},
	}
	if id.isAdmin() {
		status.ResourceRules = append(status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}})
		status.NonResourceRules = append(status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: []string{"*"}, NonResourceURLs: []string{"*"}})
		return status
	}
	status.Incomplete = true
	status.NonResourceRules = append(status.NonResourceRules, authorizationv1.NonResourceRule{
		Verbs: []string{"get"}, NonResourceURLs: []string{"/api", "/api/*", "/apis", "/apis/*", "/openapi/*", "/version"}})
	if id.Node == "" {
		return status
	}
	status.ResourceRules = append(status.ResourceRules,
		authorizationv1.ResourceRule{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"nodes", "services", "namespaces"}},
		authorizationv1.ResourceRule{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}},
		authorizationv1.ResourceRule{Verbs: []string{"create", "patch"}, APIGroups: []string{""}, Resources: []string{"events"}},
	)
	return status
}
