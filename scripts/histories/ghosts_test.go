package histories

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shepherd-project/shepherd/api"
	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster"
	"github.com/shepherd-project/shepherd/fsm"
)

const configMaps = "/api/v1/namespaces/default/configmaps"

func configMap(name, value string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"data":{"V":%q}}`, name, value)
}

// ghosts runs a test in a bubble with three servers.
func ghosts(t *testing.T, tune func(*fsm.Config, *cluster.Config, *api.Config), test func(t *testing.T, s *simulation)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 1, 3, tune)
		defer s.stop()
		test(t, s)
		s.converge()
	})
}

// hold makes the server stop before its next proposal. It
// returns a channel that is closed when it has stopped and what lets it go on.
func (u *server) hold() (held <-chan struct{}, release func()) {
	stopped, goOn := make(chan struct{}), make(chan struct{})
	var taken atomic.Bool
	f := func(fsm.Command) {
		if taken.CompareAndSwap(false, true) {
			close(stopped)
			<-goOn
		}
	}
	u.between.Store(&f)
	return stopped, func() { u.between.Store(nil); close(goOn) }
}

// holdArrival is hold for the next request that comes to the server's handler,
// before it is looked at.
func (u *server) holdArrival() (held <-chan struct{}, release func()) {
	stopped, goOn := make(chan struct{}), make(chan struct{})
	var taken atomic.Bool
	f := func(*wire.Request) {
		if taken.CompareAndSwap(false, true) {
			close(stopped)
			<-goOn
		}
	}
	u.arrival.Store(&f)
	return stopped, func() { u.arrival.Store(nil); close(goOn) }
}

// write is a request as a replica sends it to the leader.
func (s *simulation) write(h *host, method, path, body string) *wire.Request {
	id := fsm.NewRequestID(h.up.Load().store.View().Revision())
	return &wire.Request{
		Nonce: id.Nonce, Birth: id.Birth, Method: method, Path: path, Body: []byte(body), User: "admin", Groups: []string{"system:masters"},
		Header: map[string][]string{"Content-Type": {"application/json"}, "Accept": {"application/json"}},
	}
}

func (s *simulation) forward(h *host, req *wire.Request) *wire.Response {
	s.t.Helper()
	resp, err := h.up.Load().node.Forward(s.t.Context(), req)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp
}

// moveTo makes a host the leader without ending the one that leads.
func (s *simulation) moveTo(h *host) {
	s.t.Helper()
	s.poll(h.name+" leads", func() error {
		if s.leader() == h {
			return nil
		}
		s.elect(h)
		time.Sleep(20 * time.Millisecond)
		return fmt.Errorf("it does not")
	})
}

// names lists the ConfigMaps there are.
func (s *simulation) names() (list []string) {
	r := s.must(s.send(s.t.Context(), s.hosts[0], "GET", configMaps, ""), http.StatusOK)
	var found struct{ Items []wireObject }
	if err := json.Unmarshal([]byte(r.text), &found); err != nil {
		s.t.Fatal(err)
	}
	for _, o := range found.Items {
		list = append(list, o.Metadata.Name)
	}
	return list
}

// TestGhostOfADeposedLeader: a decision is made, its leader is deposed, others
// write, and it is elected again before it proposes. It must not land, neither
// a client's nor a controller's, which bears no request ID.
func TestGhostOfADeposedLeader(t *testing.T) {
	ghosts(t, nil, func(t *testing.T, s *simulation) {
		ctx := t.Context()
		old := s.awaitLeader()
		other := s.others(old)[0]
		up := old.up.Load()
		made := s.must(s.send(ctx, old, "POST", configMaps, configMap("x", "0")), http.StatusCreated)
		term, _ := up.node.Leadership()
		live := up.store.View().Get(fsm.Key{Resource: "configmaps", Namespace: "default", Name: "x"})

		held, release := up.hold()
		answer := make(chan reply, 1)
		go func() { answer <- s.send(ctx, other, "PUT", configMaps+"/x", configMap("x", "ghost")) }()
		<-held
		s.moveTo(other)
		s.must(<-answer, http.StatusOK) // the next leader has done it
		last := s.must(s.send(ctx, other, "PUT", configMaps+"/x", configMap("x", "last")), http.StatusOK)
		s.moveTo(old)
		release()
		result, err := up.node.Propose(ctx, fsm.Command{Term: term, Ops: []fsm.Op{{Verb: fsm.Update, Key: live.Key, UID: live.UID, Data: live.Data}}})
		if err != nil || result.Code != fsm.StaleTerm {
			t.Errorf("a command of term %d was answered with %v, %v", term, result.Code, err)
		}
		time.Sleep(time.Second)
		now := s.must(s.send(ctx, other, "GET", configMaps+"/x", ""), http.StatusOK)
		if now.object.Data.V != "last" || now.object.Metadata.ResourceVersion != last.object.Metadata.ResourceVersion ||
			now.object.Metadata.UID != made.object.Metadata.UID {
			t.Errorf("there is %s", now.text)
		}
	})
}

// TestGhostBeyondTheTable: a request comes again after its ID has left the
// table of outcomes. Nobody knows any more whether it was applied: it is
// refused when it is looked up, and when it is applied if it gets so far.
func TestGhostBeyondTheTable(t *testing.T) {
	small := func(bounds *fsm.Config, _ *cluster.Config, _ *api.Config) { bounds.MaxOutcomes = 3 }
	ghosts(t, small, func(t *testing.T, s *simulation) {
		ctx := t.Context()
		leader := s.awaitLeader()
		follower := s.others(leader)[0]
		push := func(prefix string) {
			for i := range 5 {
				s.must(s.send(ctx, leader, "POST", configMaps, configMap(fmt.Sprint(prefix, i), "")), http.StatusCreated)
			}
		}
		req := s.write(follower, "POST", configMaps, configMap("once", "1"))
		if resp := s.forward(follower, req); resp.Status != http.StatusCreated {
			t.Fatalf("%d %s", resp.Status, resp.Body)
		}
		s.must(s.send(ctx, follower, "DELETE", configMaps+"/once", ""), http.StatusOK)
		push("a")
		if resp := s.forward(follower, req); resp.Status != http.StatusGatewayTimeout {
			t.Errorf("looked up: %d %s", resp.Status, resp.Body)
		}

		late := s.write(follower, "POST", configMaps, configMap("late", "1"))
		held, release := leader.up.Load().hold()
		answer := make(chan *wire.Response, 1)
		go func() { answer <- s.forward(follower, late) }()
		<-held
		push("b")
		release()
		if resp := <-answer; resp.Status != http.StatusGatewayTimeout {
			t.Errorf("applied: %d %s", resp.Status, resp.Body)
		}
		if names := strings.Join(s.names(), " "); names != "a0 a1 a2 a3 a4 b0 b1 b2 b3 b4" {
			t.Errorf("there are %s", names)
		}
	})
}

// TestGhostTwinsOnOneLeader: two copies of a request arrive at one leader, from
// two replicas. One is handled, both get its answer.
func TestGhostTwinsOnOneLeader(t *testing.T) {
	ghosts(t, nil, func(t *testing.T, s *simulation) {
		leader := s.awaitLeader()
		var proposals atomic.Int32
		goOn := make(chan struct{})
		hook := func(fsm.Command) { proposals.Add(1); <-goOn }
		leader.up.Load().between.Store(&hook)
		req := s.write(leader, "POST", configMaps, `{"metadata":{"generateName":"twin-"}}`)
		answers := make(chan *wire.Response, 2)
		for _, h := range s.others(leader) {
			go func() { answers <- s.forward(h, req) }()
		}
		time.Sleep(200 * time.Millisecond)
		close(goOn)
		one, two := <-answers, <-answers
		if one.Status != http.StatusCreated || string(one.Body) != string(two.Body) || proposals.Load() != 1 {
			t.Errorf("%d proposals, answers %d %s and %d %s", proposals.Load(), one.Status, one.Body, two.Status, two.Body)
		}
		if names := s.names(); len(names) != 1 {
			t.Errorf("there are %v", names)
		}
	})
}

// TestGhostOfARefusedCreate: a copy of a create reaches its leader, which is
// deposed before it looks at it. The next leader finds that the object exists,
// and says so to the client; nothing is recorded of a refusal. When the first
// leader is elected again and goes on, after somebody else has deleted the
// object, it must not make it.
func TestGhostOfARefusedCreate(t *testing.T) {
	ghosts(t, nil, func(t *testing.T, s *simulation) {
		ctx := t.Context()
		old := s.awaitLeader()
		other := s.others(old)[0]
		s.must(s.send(ctx, other, "POST", configMaps, configMap("x", "first")), http.StatusCreated)
		held, release := old.up.Load().holdArrival()
		answer := make(chan reply, 1)
		go func() { answer <- s.send(ctx, other, "POST", configMaps, configMap("x", "ghost")) }()
		<-held
		s.moveTo(other)
		s.must(<-answer, http.StatusConflict)
		s.moveTo(old)
		s.must(s.send(ctx, other, "DELETE", configMaps+"/x", ""), http.StatusOK)
		release()
		time.Sleep(time.Second)
		if names := s.names(); len(names) != 0 {
			t.Errorf("there are %v", names)
		}
	})
}

// dieAfterCommit cuts the server off as soon as its next proposal of the API is
// committed, before anybody is told.
func (s *simulation) dieAfterCommit(h *host) (dead <-chan struct{}) {
	gone := make(chan struct{})
	var once sync.Once
	after := func(result fsm.Result) {
		if result.Code == fsm.OK {
			once.Do(func() { s.net.Crash(h.addr); close(gone) })
		}
	}
	h.up.Load().after.Store(&after)
	return gone
}

// TestGhostOfACreate: a create is applied and its leader dies before it can say
// so. The resend is answered with 201 and the same object, not with 409, also
// when the name was drawn by the dead leader.
func TestGhostOfACreate(t *testing.T) {
	for _, body := range []string{configMap("lost", "1"), `{"metadata":{"generateName":"lost-"},"data":{"V":"1"}}`} {
		ghosts(t, nil, func(t *testing.T, s *simulation) {
			leader := s.awaitLeader()
			follower := s.others(leader)[0]
			dead := s.dieAfterCommit(leader)
			answer := make(chan reply, 1)
			go func() { answer <- s.send(t.Context(), follower, "POST", configMaps, body) }()
			<-dead
			made := leader.up.Load().store.View()
			s.crash(leader)
			got := s.must(<-answer, http.StatusCreated)
			meta := got.object.Metadata
			o := made.Get(fsm.Key{Resource: "configmaps", Namespace: "default", Name: meta.Name})
			if o == nil || o.UID != meta.UID || fmt.Sprint(o.Modified) != meta.ResourceVersion {
				t.Errorf("the dead leader made %+v, the client was told %s", o, got.text)
			}
			s.heal()
			if names := s.names(); len(names) != 1 || names[0] != meta.Name {
				t.Errorf("there are %v", names)
			}
		})
	}
}

// TestGhostAndTheDeadReplica: a client of the replica that dies sees a broken
// connection, and no answer that could be wrong.
func TestGhostAndTheDeadReplica(t *testing.T) {
	ghosts(t, nil, func(t *testing.T, s *simulation) {
		leader := s.awaitLeader()
		dead := s.dieAfterCommit(leader)
		answer := make(chan reply, 1)
		go func() { answer <- s.send(t.Context(), leader, "POST", configMaps, configMap("x", "1")) }()
		<-dead
		s.crash(leader)
		if r := <-answer; r.err == nil {
			t.Errorf("the client of a dead server was told %d %s", r.code, r.text)
		}
		if r := s.send(t.Context(), leader, "GET", configMaps, ""); r.err == nil {
			t.Errorf("a dead server answers: %d %s", r.code, r.text)
		}
		s.heal()
		if names := s.names(); len(names) != 1 {
			t.Errorf("there are %v", names)
		}
	})
}

// twoLetters draws like rand.PCG, but names of two letters only: they collide.
type twoLetters struct{ *rand.PCG }

func (s twoLetters) Uint64() uint64 {
	n := s.PCG.Uint64()
	return n - n%27 + n>>40%2
}

// TestGhostOfAGeneratedName: names collide, within one leader's view and in the
// log, and the leader dies in between. Everybody gets an object of its own.
func TestGhostOfAGeneratedName(t *testing.T) {
	var seed atomic.Uint64
	collide := func(_ *fsm.Config, _ *cluster.Config, ac *api.Config) {
		ac.Write.Rand = rand.New(twoLetters{rand.NewPCG(7, seed.Add(1))})
	}
	ghosts(t, collide, func(t *testing.T, s *simulation) {
		leader := s.awaitLeader()
		var collisions atomic.Int32
		after := func(r fsm.Result) {
			if r.Code == fsm.Conflict {
				collisions.Add(1)
			}
		}
		for _, h := range s.hosts {
			h.up.Load().after.Store(&after)
		}
		answers := make(chan reply, 20)
		for i := range cap(answers) {
			h := s.others(leader)[i%2]
			go func() {
				answers <- s.send(t.Context(), h, "POST", configMaps, `{"metadata":{"generateName":"g-"}}`)
			}()
		}
		time.Sleep(2 * time.Millisecond)
		s.crash(leader)
		made := map[string]bool{}
		for range cap(answers) {
			switch r := <-answers; {
			case r.err == nil && r.code == http.StatusCreated:
				if made[r.object.Metadata.Name] {
					t.Errorf("%s was given twice", r.object.Metadata.Name)
				}
				made[r.object.Metadata.Name] = true
			case r.err != nil || r.code != http.StatusConflict || r.object.Reason != "AlreadyExists":
				t.Errorf("%d %s %v", r.code, r.text, r.err)
			}
		}
		s.heal()
		names := s.names()
		if len(names) != len(made) || len(made) < 10 {
			t.Errorf("%d objects %v, %d acknowledged", len(names), names, len(made))
		}
		if collisions.Load() == 0 {
			t.Error("no names collided in the log: the test shows nothing")
		}
		t.Logf("%d objects, %d collisions in the log", len(names), collisions.Load())
	})
}
