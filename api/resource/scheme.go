package resource

import (
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// Scheme knows the types of every kind in the table and of what is only sent
// or answered (Scale, Eviction, reviews, Status, options). Scheme.Default runs
// the kinds' Default.
var Scheme = newScheme()

// Codecs negotiates JSON, YAML and protobuf, ignoring unknown fields.
// StrictCodecs reports unknown and duplicate fields as a strict decoding error
// (runtime.IsStrictDecodingError) beside the decoded object.
var (
	Codecs       = serializer.NewCodecFactory(Scheme)
	StrictCodecs = serializer.NewCodecFactory(Scheme, serializer.EnableStrict)
)

// ParameterCodec decodes query parameters into ListOptions, DeleteOptions,
// PodLogOptions and the like.
var ParameterCodec = runtime.NewParameterCodec(Scheme)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, discoveryv1.AddToScheme, coordinationv1.AddToScheme,
		autoscalingv1.AddToScheme, policyv1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme,
		metav1.AddMetaToScheme,
	} {
		utilruntime.Must(add(s))
	}
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	for _, k := range kinds {
		s.AddTypeDefaultingFunc(k.New(), func(obj any) { k.Default(obj.(runtime.Object)) })
	}
	return s
}
