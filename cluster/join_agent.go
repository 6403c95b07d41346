package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/pki"
)

const agentFile = "agent.json"

// agentRecord says which node a directory belongs to; written last.
type agentRecord struct {
	Version   int      `json:"version"`
	ClusterID string   `json:"clusterID"`
	Node      string   `json:"node"`
	Servers   []string `json:"servers"` // HOST:PORT, as of the join
}

// AgentHome is what lets a machine be a node: its certificate, in a directory
// that no other process uses. The source is safe for concurrent use, the rest
// is not.
type AgentHome struct {
	dir    string
	lock   *os.File
	record agentRecord
	CA     *pki.CA // nil until joined; without its key
	Source *pki.Source
}

// OpenAgentHome makes the directory if needed, locks it and reads what it holds.
func OpenAgentHome(dir string) (*AgentHome, error) {
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	h := &AgentHome{dir: dir, lock: lock}
	if err := h.read(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// Close gives up the lock.
func (h *AgentHome) Close() error { return h.lock.Close() }

// Node is the name that the machine joined under, "" before it did.
func (h *AgentHome) Node() string { return h.record.Node }

// Servers are the addresses known when the machine joined.
func (h *AgentHome) Servers() []string { return h.record.Servers }

// Joined reports whether the machine holds a certificate that is still good.
func (h *AgentHome) Joined(now time.Time) bool {
	return h.record.Node != "" && h.Source.Leaf() != nil && now.Before(h.Source.Leaf().NotAfter)
}

func (h *AgentHome) read() (err error) {
	if h.Source, err = pki.OpenSource(h.dir, "agent"); err != nil {
		return fmt.Errorf("agent directory %s is damaged: %w", h.dir, err)
	}
	path := filepath.Join(h.dir, agentFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return describe("read", path, err)
	}
	if err := json.Unmarshal(text, &h.record); err != nil {
		return fmt.Errorf("agent directory %s is damaged: %s cannot be read (%w)", h.dir, agentFile, err)
	}
	if h.record.Version != 1 {
		return fmt.Errorf("agent directory %s was written by a newer version (format %d); this one knows format 1", h.dir, h.record.Version)
	}
	if h.CA, err = pki.LoadCA(h.dir); err != nil {
		return fmt.Errorf("agent directory %s is damaged: %w", h.dir, err)
	}
	if h.CA.ClusterID() != h.record.ClusterID {
		return fmt.Errorf("agent directory %s is damaged: its node is of cluster %s, its CA of cluster %s", h.dir, h.record.ClusterID, h.CA.ClusterID())
	}
	return nil
}

// CheckNode refuses to run the directory's node under another name.
func (h *AgentHome) CheckNode(node string) error {
	if h.record.Node != "" && node != "" && node != h.record.Node {
		return fmt.Errorf("agent directory %s belongs to node %q, not to %q: give the name it has, or another directory", h.dir, h.record.Node, node)
	}
	return nil
}

// CheckToken refuses a token of another cluster than the directory's.
func (h *AgentHome) CheckToken(token pki.Token) error {
	if h.CA == nil {
		return nil
	}
	return checkPin(h.dir, h.CA, token)
}

// Join gets a certificate for the node, for the key that the directory has:
// so a machine whose certificate has expired comes back under its name.
func (h *AgentHome) Join(ctx context.Context, j *Joiner, token pki.Token, node, version string) error {
	if token.Role != pki.RoleAgent {
		return fmt.Errorf("%w: an agent joins with an agent token, this one is for the role %q", pki.ErrTokenRole, token.Role)
	}
	if err := h.CheckToken(token); err != nil {
		return err
	}
	csr, err := pki.NewCSR(h.Source.Key(), nil)
	if err != nil {
		return err
	}
	res, ca, err := j.Join(ctx, token, wire.JoinRequest{Role: string(pki.RoleAgent), Name: node, CSR: string(csr), Version: version})
	if err != nil {
		return err
	}
	if err := pki.SaveCA(h.dir, ca); err != nil {
		return err
	}
	if err := h.Source.Install([]byte(res.Certificate)); err != nil {
		return err
	}
	h.CA = ca
	h.record = agentRecord{Version: 1, ClusterID: ca.ClusterID(), Node: node}
	for _, s := range res.Servers {
		h.record.Servers = append(h.record.Servers, s.Address)
	}
	text, err := json.MarshalIndent(h.record, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", agentFile, err)
	}
	return pki.WriteFile(filepath.Join(h.dir, agentFile), append(text, '\n'))
}
