package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Role is what a certificate or a token is for.
type Role string

const (
	// RoleServer may serve the port, speak Raft and open server links.
	RoleServer Role = "server"
	// RoleAgent may act for one node.
	RoleAgent Role = "agent"
	// RoleAdmin may do everything through the API.
	RoleAdmin Role = "admin"
)

// roleCA stands in the URI of the CA's own certificate.
const roleCA = "ca"

func (r Role) valid() bool { return r == RoleServer || r == RoleAgent || r == RoleAdmin }

// Subjects that the Kubernetes API sees for each role.
const (
	AdminUser   = "shepherd-admin"
	AdminGroup  = "system:masters"
	NodePrefix  = "system:node:"
	NodeGroup   = "system:nodes"
	ServerUser  = "shepherd:server:"
	ServerGroup = "shepherd:servers"
)

var (
	// ErrNoIdentity is wrapped when a certificate has no shepherd:// URI.
	ErrNoIdentity = errors.New("certificate has no shepherd identity")
	// ErrForeign is wrapped when a certificate was not issued by this
	// cluster's CA, or names another cluster.
	ErrForeign = errors.New("certificate of another cluster")
	// ErrExpired is wrapped when a certificate is past its end or before its
	// beginning.
	ErrExpired = errors.New("certificate is not valid now")
	// ErrWrongRole is wrapped when a certificate is good but for another role.
	ErrWrongRole = errors.New("certificate has the wrong role")
	// ErrNoCertificate is wrapped when the peer presented none.
	ErrNoCertificate = errors.New("no certificate was presented")
)

// Identity is who a certificate stands for.
type Identity struct {
	Role Role
	// Name is the server's Raft ID, the node's name or the administrator's.
	Name      string
	ClusterID string
}

// User is the name that the Kubernetes API gives this identity.
func (id Identity) User() string {
	switch id.Role {
	case RoleAgent:
		return NodePrefix + id.Name
	case RoleServer:
		return ServerUser + id.Name
	default:
		return id.Name
	}
}

// Groups are those that the Kubernetes API gives this identity.
func (id Identity) Groups() []string {
	switch id.Role {
	case RoleAgent:
		return []string{NodeGroup}
	case RoleServer:
		return []string{ServerGroup}
	case RoleAdmin:
		return []string{AdminGroup}
	default:
		return nil
	}
}

func (id Identity) String() string { return fmt.Sprintf("%s %q", id.Role, id.Name) }

// URI is the name that the certificate carries.
func (id Identity) URI() *url.URL {
	return &url.URL{Scheme: "shepherd", Host: id.ClusterID, Path: "/" + string(id.Role) + "/" + id.Name}
}

// validate refuses what could be read back as another identity.
func (id Identity) validate() error {
	if !id.Role.valid() {
		return fmt.Errorf("unknown role %q", id.Role)
	}
	if err := CheckName(id.Name); err != nil {
		return fmt.Errorf("%s name %q: %w", id.Role, id.Name, err)
	}
	if err := CheckName(id.ClusterID); err != nil {
		return fmt.Errorf("cluster ID %q: %w", id.ClusterID, err)
	}
	return nil
}

// CheckName refuses what cannot be the name of servers, nodes, administrators and clusters:
// DNS subdomains, so that they mean the same in a URI, a file and an object.
func CheckName(s string) error {
	if s == "" || len(s) > 253 {
		return errors.New("must have 1 to 253 characters")
	}
	for _, label := range strings.Split(s, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return errors.New("must be made of labels that begin and end with a letter or digit")
		}
		for _, r := range label {
			if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
				return fmt.Errorf("has %q; lower-case letters, digits, '-' and '.' are allowed", r)
			}
		}
	}
	return nil
}

// FromCertificate reads the identity that a certificate carries. It does not
// say that the certificate may be trusted: see Verifier.
func FromCertificate(cert *x509.Certificate) (Identity, error) {
	var found *url.URL
	for _, u := range cert.URIs {
		if u.Scheme != "shepherd" {
			continue
		}
		if found != nil {
			return Identity{}, fmt.Errorf("%w: it has two", ErrNoIdentity)
		}
		found = u
	}
	if found == nil {
		return Identity{}, ErrNoIdentity
	}
	role, name, ok := strings.Cut(strings.TrimPrefix(found.Path, "/"), "/")
	id := Identity{Role: Role(role), Name: name, ClusterID: found.Host}
	if !ok || found.RawQuery != "" || found.Fragment != "" || found.User != nil || found.RawPath != "" {
		return Identity{}, fmt.Errorf("%w: %q is malformed", ErrNoIdentity, found)
	}
	if err := id.validate(); err != nil {
		return Identity{}, fmt.Errorf("%w: %w", ErrNoIdentity, err)
	}
	return id, nil
}
