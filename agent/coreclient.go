package agent

import (
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"

	"github.com/shepherd-project/shepherd/agent/upstream"
)

// client speaks the core group of the Kubernetes API to any live server. Its
// methods may be called from many goroutines.
//
// It is what client-go's own clientset is made of, for the kinds that an agent
// handles alone: the clientset links the types of every API group, which an
// agent would hold in memory and every build of it would compile.
type client struct {
	rest   rest.Interface
	params runtime.ParameterCodec
}

type (
	podClient       = *gentype.ClientWithList[*corev1.Pod, *corev1.PodList]
	nodeClient      = *gentype.ClientWithList[*corev1.Node, *corev1.NodeList]
	eventClient     = *gentype.Client[*corev1.Event]
	configMapClient = *gentype.Client[*corev1.ConfigMap]
	secretClient    = *gentype.Client[*corev1.Secret]
)

// newClient returns a client whose requests go through transport.
func newClient(transport http.RoundTripper) (*client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("API client: %w", err)
	}
	cfg := &rest.Config{
		Host:      "https://" + upstream.Host,
		APIPath:   "/api",
		UserAgent: "shepherd-agent",
		QPS:       -1, // the loops bound themselves; a limiter here would put them in one queue
		ContentConfig: rest.ContentConfig{
			ContentType:          runtime.ContentTypeProtobuf,
			AcceptContentTypes:   runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
			GroupVersion:         &corev1.SchemeGroupVersion,
			NegotiatedSerializer: rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion(),
		},
	}
	c, err := rest.RESTClientForConfigAndClient(cfg, &http.Client{Transport: transport})
	if err != nil {
		return nil, fmt.Errorf("API client: %w", err)
	}
	return &client{rest: c, params: runtime.NewParameterCodec(scheme)}, nil
}

func (c *client) Pods(namespace string) podClient {
	return gentype.NewClientWithList("pods", c.rest, c.params, namespace,
		func() *corev1.Pod { return &corev1.Pod{} }, func() *corev1.PodList { return &corev1.PodList{} },
		gentype.PrefersProtobuf[*corev1.Pod]())
}

func (c *client) Nodes() nodeClient {
	return gentype.NewClientWithList("nodes", c.rest, c.params, "",
		func() *corev1.Node { return &corev1.Node{} }, func() *corev1.NodeList { return &corev1.NodeList{} },
		gentype.PrefersProtobuf[*corev1.Node]())
}

func (c *client) Events(namespace string) eventClient {
	return gentype.NewClient("events", c.rest, c.params, namespace,
		func() *corev1.Event { return &corev1.Event{} }, gentype.PrefersProtobuf[*corev1.Event]())
}

func (c *client) ConfigMaps(namespace string) configMapClient {
	return gentype.NewClient("configmaps", c.rest, c.params, namespace,
		func() *corev1.ConfigMap { return &corev1.ConfigMap{} }, gentype.PrefersProtobuf[*corev1.ConfigMap]())
}

func (c *client) Secrets(namespace string) secretClient {
	return gentype.NewClient("secrets", c.rest, c.params, namespace,
		func() *corev1.Secret { return &corev1.Secret{} }, gentype.PrefersProtobuf[*corev1.Secret]())
}
