package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster"
	"github.com/shepherd-project/shepherd/cluster/pki"
	"github.com/shepherd-project/shepherd/fsm"
)

// node is one server of the replicated core without the API, in a process of
// its own: its port with mutual TLS, its log on disk, its state machine. It
// obeys the lines on its standard input, each with one line of JSON.
type node struct {
	store *fsm.Store
	node  *cluster.Node
	port  *cluster.Port
}

// runNode is the program in that process. The directory of the CA is shared.
func runNode(name, address, dir, caDir string, bootstrap bool) error {
	n := &node{}
	id, err := n.start(name, address, dir, caDir, bootstrap)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(id); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer, err := n.obey(lines.Text())
		if err != nil {
			return err
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	return errors.Join(n.node.Shutdown(context.Background()), n.port.Close())
}

func (n *node) start(name, address, dir, caDir string, bootstrap bool) (id string, err error) {
	ca, err := pki.LoadCA(caDir)
	if err != nil {
		return "", err
	}
	id = cluster.NewServerID(name)
	source, err := pki.OpenSource(filepath.Join(dir, "pki"), "server")
	if err != nil {
		return "", err
	}
	cert, err := ca.Issue(pki.Request{Role: pki.RoleServer, Name: id, Hosts: []string{"127.0.0.1"}, Public: source.Key().Public()}, time.Now())
	if err != nil {
		return "", err
	}
	if err := source.Install(cert); err != nil {
		return "", err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return "", err
	}
	verifier := pki.NewVerifier(ca, time.Now)
	port := cluster.DefaultPortConfig()
	port.Listener, port.Source, port.Verifier = listener, source, verifier
	if n.port, err = cluster.NewPort(port); err != nil {
		return "", err
	}
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: os.Stderr})
	dialer := &cluster.Dialer{Source: source, Verifier: verifier}
	cfg := cluster.DefaultConfig()
	cfg.ID, cfg.Name, cfg.Address, cfg.DataDir, cfg.Bootstrap = id, name, address, dir, bootstrap
	n.store = fsm.New(fsm.DefaultConfig())
	cfg.Store = n.store
	cfg.Transport = cluster.NewTransport(cluster.NewRaftLayer(n.port, dialer, address), cfg.Timing.Transport, logger)
	cfg.DialLink, cfg.LinkListener = dialer.Link, n.port.Link()
	cfg.Handler = func(context.Context, *wire.Request) *wire.Response {
		return &wire.Response{Status: 404, Committed: true} // nobody forwards here
	}
	cfg.Logger = logger
	n.node, err = cluster.New(cfg)
	return id, err
}

func (n *node) obey(line string) (any, error) {
	verb, rest, _ := strings.Cut(line, " ")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch verb {
	case "add": // ID ADDRESS
		id, address, _ := strings.Cut(rest, " ")
		return "added", poll(ctx, func() error { return n.node.AddServer(ctx, id, address) })
	case "members": // how many are voters
		want := 0
		if _, err := fmt.Sscan(rest, &want); err != nil {
			return nil, err
		}
		return "whole", poll(ctx, func() error { return healthy(n.node.Status(ctx), want) })
	case "load":
		var l load
		if err := json.Unmarshal([]byte(rest), &l); err != nil {
			return nil, err
		}
		return l.run(func(int) (write, error) { return n.create, nil }), nil
	}
	return nil, fmt.Errorf("unknown order %q", line)
}

// create is one write: a new object, with a request ID as the API gives it.
func (n *node) create(ctx context.Context, name string, value []byte) error {
	term, leading := n.node.Leadership()
	if !leading {
		return errors.New("this node does not lead")
	}
	res, err := n.node.Propose(ctx, fsm.Command{
		ID: fsm.NewRequestID(n.store.View().Revision()), Term: term,
		Ops: []fsm.Op{{Verb: fsm.Create, Key: fsm.Key{Resource: "configmaps", Namespace: "default", Name: name}, UID: name, Data: value}},
	})
	if err != nil {
		return err
	}
	if res.Code != fsm.OK {
		return fmt.Errorf("%s: %s", res.Code, res.Detail)
	}
	return nil
}
