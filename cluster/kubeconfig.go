package cluster

import (
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
)

// The parts of a kubeconfig that Shepherd writes, as kubectl reads them.
type kubeconfig struct {
	APIVersion     string        `json:"apiVersion"`
	Kind           string        `json:"kind"`
	Clusters       []kubeCluster `json:"clusters"`
	Users          []kubeUser    `json:"users"`
	Contexts       []kubeContext `json:"contexts"`
	CurrentContext string        `json:"current-context"`
}

type kubeCluster struct {
	Name    string `json:"name"`
	Cluster struct {
		Server string `json:"server"`
		CA     []byte `json:"certificate-authority-data"`
	} `json:"cluster"`
}

type kubeUser struct {
	Name string `json:"name"`
	User struct {
		Certificate []byte `json:"client-certificate-data"`
		Key         []byte `json:"client-key-data"`
	} `json:"user"`
}

type kubeContext struct {
	Name    string `json:"name"`
	Context struct {
		Cluster string `json:"cluster"`
		User    string `json:"user"`
	} `json:"context"`
}

// Kubeconfig is a file for kubectl with a context for each server, all with
// the administrator's credentials inline. The server named current is listed
// first and is the current context; it is there even if servers lacks it.
func Kubeconfig(ca *pki.CA, current wire.Server, servers []wire.Server, certPEM, keyPEM []byte) ([]byte, error) {
	user := kubeUser{Name: pki.AdminUser + "@" + ca.ClusterID()}
	user.User.Certificate, user.User.Key = certPEM, keyPEM
	out := kubeconfig{APIVersion: "v1", Kind: "Config", Users: []kubeUser{user}, CurrentContext: current.Name}
	add := func(s wire.Server) {
		c := kubeCluster{Name: s.Name}
		c.Cluster.Server, c.Cluster.CA = "https://"+s.Address, ca.CertPEM()
		out.Clusters = append(out.Clusters, c)
		x := kubeContext{Name: s.Name}
		x.Context.Cluster, x.Context.User = s.Name, user.Name
		out.Contexts = append(out.Contexts, x)
	}
	add(current)
	for _, s := range servers {
		if s.Name != current.Name {
			add(s)
		}
	}
	text, err := yaml.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("write a kubeconfig: %w", err)
	}
	return text, nil
}
