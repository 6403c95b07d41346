package fsm

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/raft"
)

// machine drives a store the way Raft does.
type machine struct {
	t     testing.TB
	store *Store
	index uint64
	term  uint64
}

func newMachine(t testing.TB, cfg Config) *machine {
	return &machine{t: t, store: New(cfg), term: 1}
}

func (m *machine) entry(cmds ...Command) []Result {
	m.t.Helper()
	m.index++
	out := m.store.Apply(&raft.Log{Index: m.index, Term: m.term, Type: raft.LogCommand, Data: EncodeEntry(cmds)})
	results, ok := out.([]Result)
	if !ok {
		m.t.Fatalf("Apply answered %v", out)
	}
	return results
}

// one applies a command planned in the current term.
func (m *machine) one(c Command) Result {
	m.t.Helper()
	c.Term = m.term
	return m.entry(c)[0]
}

// must applies a command that has to succeed.
func (m *machine) must(c Command) Result {
	m.t.Helper()
	r := m.one(c)
	if r.Code != OK {
		m.t.Fatalf("command: %v: %s %s", r.Code, r.FailedKey, r.Detail)
	}
	return r
}

// snapshot returns the store's snapshot as bytes.
func (m *machine) snapshot() []byte {
	m.t.Helper()
	s, err := m.store.Snapshot()
	if err != nil {
		m.t.Fatal(err)
	}
	defer s.Release()
	sink := &memorySink{}
	if err := s.Persist(sink); err != nil {
		m.t.Fatal(err)
	}
	if !sink.closed {
		m.t.Fatal("sink was not closed")
	}
	return sink.Bytes()
}

type memorySink struct {
	bytes.Buffer
	closed, cancelled bool
}

func (s *memorySink) ID() string    { return "test" }
func (s *memorySink) Close() error  { s.closed = true; return nil }
func (s *memorySink) Cancel() error { s.cancelled = true; return nil }

func reader(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }

func pod(name string) Key { return Key{Resource: "pods", Namespace: "default", Name: name} }

func create(k Key, uid, data string) Op {
	return Op{Verb: Create, Key: k, UID: uid, Data: []byte(data)}
}

func update(k Key, uid, data string) Op {
	return Op{Verb: Update, Key: k, UID: uid, Data: []byte(data)}
}

func remove(k Key, uid string) Op { return Op{Verb: Delete, Key: k, UID: uid} }

func requestID(n uint64, birth uint64) RequestID {
	id := RequestID{Birth: birth}
	id.Nonce[0], id.Nonce[1], id.Nonce[2], id.Nonce[15] = byte(n), byte(n>>8), byte(n>>16), 1
	return id
}

// generator makes random commands, valid and not, over a small world.
type generator struct {
	r       *rand.Rand
	seq     uint64
	history []Command
}

func newGenerator(seed uint64) *generator {
	return &generator{r: rand.New(rand.NewPCG(seed, 7))}
}

func (g *generator) key() Key {
	resources := []string{"pods", "services", "deployments.apps", ReservationResource}
	return Key{
		Resource:  resources[g.r.IntN(len(resources))],
		Namespace: []string{"", "a", "b"}[g.r.IntN(3)],
		Name:      fmt.Sprintf("n%d", g.r.IntN(8)),
	}
}

// command draws a command that looks at v, and sometimes lies about it.
func (g *generator) command(v *View, term uint64) Command {
	if len(g.history) > 0 && g.r.IntN(10) == 0 {
		return g.history[g.r.IntN(len(g.history))] // a resend, however old
	}
	c := Command{Term: term, Time: int64(g.r.IntN(1000)) - 10}
	if g.r.IntN(15) == 0 {
		c.Term--
	}
	if g.r.IntN(2) == 0 {
		g.seq++
		c.ID = requestID(g.seq, v.Revision()-min(v.Revision(), uint64(g.r.IntN(4))))
		if g.r.IntN(4) == 0 {
			c.ID.Sub = fmt.Sprintf("delete/u%d", g.r.IntN(3))
		}
	}
	for range g.r.IntN(3) {
		c.Pre = append(c.Pre, g.precondition(v))
	}
	for range 1 + g.r.IntN(3) {
		c.Ops = append(c.Ops, g.op(v))
	}
	if g.r.IntN(40) == 0 {
		c.Ops = nil
	}
	g.history = append(g.history, c)
	return c
}

func (g *generator) precondition(v *View) Precondition {
	p := Precondition{Key: g.key()}
	o := v.Get(p.Key)
	switch {
	case o == nil || g.r.IntN(6) == 0:
		p.Absent = true
	case g.r.IntN(2) == 0:
		p.UID, p.Revision = o.UID, o.Modified
	default:
		p.Live = true
	}
	if g.r.IntN(12) == 0 {
		p.Revision++
	}
	return p
}

func (g *generator) op(v *View) Op {
	k := g.key()
	data := make([]byte, g.r.IntN(40))
	for i := range data {
		data[i] = byte(g.r.Uint32())
	}
	o := v.Get(k)
	if o == nil || g.r.IntN(15) == 0 {
		return Op{Verb: Create, Key: k, UID: fmt.Sprintf("u%d", g.r.IntN(1000)), Data: data}
	}
	op := Op{Verb: Update, Key: k, UID: o.UID, Data: data, Deleting: g.r.IntN(4) == 0}
	switch g.r.IntN(6) {
	case 0:
		op.Verb, op.Data = Delete, nil
	case 1:
		op.Data, op.Deleting = o.Data, o.Deleting // a no-op
	case 2:
		op.UID = "other"
	}
	return op
}
