package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// followersOf are the servers that do not lead.
func (c *simCluster) followersOf(leader *simHost) (list []*simHost) {
	for _, h := range c.hosts {
		if h != leader {
			list = append(list, h)
		}
	}
	return list
}

func mustAges(t *testing.T, n *Node) map[string]time.Duration {
	t.Helper()
	ages, err := n.Ages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ages
}

func isAbout(d, want time.Duration) bool {
	return d >= want-20*time.Millisecond && d <= want+20*time.Millisecond
}

// TestAgesOutliveTheLeader: an agent and the leader die together. The next
// leader knows at once how long ago the agent was heard, and that the other
// agent lives: no amnesty for the one, no alarm for the other.
func TestAgesOutliveTheLeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, 3, nil)
		defer c.stop()
		leader := c.leader()
		entry, _ := c.followersOf(leader)[0].current()
		replicas, err := entry.Heartbeat(t.Context(), "dies")
		if err != nil || replicas < 2 {
			t.Fatalf("%d replicas, %v", replicas, err)
		}
		died := time.Now()
		c.crash(leader)
		next := c.waitLeader()
		if _, err := entry.Heartbeat(t.Context(), "lives"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		ages := mustAges(t, next)
		if !isAbout(ages["dies"], time.Since(died)) || !isAbout(ages["lives"], 10*time.Second) {
			t.Errorf("after %v: %v", time.Since(died), ages)
		}
		// The one that restarts has heard nothing; what it says can only delay.
		c.restart(leader)
		c.converge()
		if age := mustAges(t, c.waitLeader())["dies"]; age > time.Since(died)+20*time.Millisecond {
			t.Errorf("after %v the age is %v", time.Since(died), age)
		}
	})
}

// TestAgesDoNotWaitForAStoppedServer: the old leader is there and does not
// answer, as one that is stopped. The first reconcile of the next one's node
// controller asks for ages, and waits for those that answer.
func TestAgesDoNotWaitForAStoppedServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t, 1, 3, nil)
		defer w.stop()
		old, others := w.split()
		w.net.isolate(old.addr, w.addrs(), true)
		w.mustWrite(others)
		next, begun := w.waitLeader(), time.Now()
		mustAges(t, next)
		if took := time.Since(begun); took > 20*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		w.converge()
	})
}

func TestAgesHoldUnheardNodesAndUptime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 2, 1, nil)
		defer c.stop()
		n, store := c.hosts[0].current()
		time.Sleep(30 * time.Second)
		term, _ := n.Leadership()
		res, err := n.Propose(t.Context(), fsm.Command{Term: term, Ops: []fsm.Op{{Verb: fsm.Create, Key: fsm.Key{Resource: "nodes", Name: "silent"}, UID: "u", Data: []byte("x")}}})
		if err != nil || res.Code != fsm.OK {
			t.Fatal(res, err)
		}
		ages := mustAges(t, n)
		if age, ok := ages["silent"]; !ok || age < 30*time.Second || age > 31*time.Second {
			t.Errorf("a node never heard of: %v", ages)
		}
		if now := store.View().Time(); time.Since(now).Abs() > time.Minute {
			t.Errorf("cluster time is %v", now)
		}
		if _, err := n.Heartbeat(t.Context(), "gone"); err != nil {
			t.Fatal(err)
		}
		n.live.record("gone", time.Hour) // an older age changes nothing
		if age := mustAges(t, n)["gone"]; age > time.Second {
			t.Errorf("age went back to %v", age)
		}
		time.Sleep(2 * forgetAfter)
		ages = mustAges(t, n)
		if _, ok := ages["gone"]; ok || len(ages) != 1 {
			t.Errorf("a node long gone is remembered: %v", ages)
		}
	})
}

func TestHeartbeatNeedsAMajority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, 3, nil)
		defer c.stop()
		leader := c.leader()
		alone, _ := leader.current()
		c.net.isolate(leader.addr, c.addrs(), true)
		if _, err := alone.Ages(t.Context()); err == nil {
			t.Error("ages without a majority")
		}
		if _, err := alone.Heartbeat(t.Context(), "w1"); !errors.Is(err, ErrNoQuorum) {
			t.Errorf("heartbeat without a majority: %v", err)
		}
		other, _ := c.followersOf(leader)[0].current()
		if _, err := other.Heartbeat(t.Context(), "w1"); err != nil {
			t.Errorf("heartbeat with a majority: %v", err)
		}
		poll(t, "the cut-off leader steps down", func() error {
			if _, leading := alone.Leadership(); leading {
				return errors.New("it leads")
			}
			return nil
		})
		if _, err := alone.Ages(t.Context()); !errors.Is(err, ErrNotLeader) {
			t.Errorf("ages without leading: %v", err)
		}
		c.net.heal()
	})
}

func TestHandlerServesWhoMayAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 4, 3, func(cfg *Config) {
			cfg.Agent = func(r *http.Request) (string, bool) { return r.Header.Get("X-Node"), r.Header.Get("X-Node") != "" }
			cfg.Admin = func(r *http.Request) bool { return r.Header.Get("X-Admin") != "" }
		})
		defer c.stop()
		old := c.leader()
		follower, _ := c.followersOf(old)[0].current()
		ask := func(method, path, header, body string, into any) int {
			r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
			if header != "" {
				r.Header.Set(header, "w1")
			}
			w := httptest.NewRecorder()
			follower.Handler().ServeHTTP(w, r)
			if into != nil {
				if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
					t.Fatalf("%s %s: %v: %s", method, path, err, w.Body)
				}
			}
			return w.Code
		}
		var ack wire.HeartbeatAck
		if code := ask("POST", wire.PathHeartbeat, "X-Node", `{"sequence":7}`, &ack); code != 200 || ack.Sequence != 7 || ack.Replicas < 2 {
			t.Errorf("heartbeat: %d %+v", code, ack)
		}
		for _, denied := range []struct{ method, path, header string }{
			{"POST", wire.PathHeartbeat, ""}, {"POST", wire.PathHeartbeat, "X-Admin"},
			{"GET", wire.PathStatus, "X-Node"}, {"POST", wire.PathTransfer, "X-Node"}, {"GET", wire.PathServers, ""},
		} {
			if code := ask(denied.method, denied.path, denied.header, `{}`, nil); code != 401 {
				t.Errorf("%+v: %d", denied, code)
			}
		}
		if code := ask("POST", wire.PathHeartbeat, "X-Node", `{"sequence":`, nil); code != 400 {
			t.Errorf("half a heartbeat: %d", code)
		}
		if code := ask("POST", wire.PathHeartbeat, "X-Node", `{"bootID":"`+strings.Repeat("x", maxSmallBody)+`"}`, nil); code != 400 {
			t.Errorf("a huge heartbeat: %d", code)
		}
		var list wire.ServerList
		if code := ask("GET", wire.PathServers, "X-Node", "", &list); code != 200 || len(list.Servers) != 3 || list.Servers[0].Name != "s1" {
			t.Errorf("servers: %d %+v", code, list)
		}
		var st wire.ClusterStatus
		if code := ask("GET", wire.PathStatus, "X-Admin", "", &st); code != 200 || st.Leader != old.name || len(st.Members) != 3 || st.Message != "" {
			t.Errorf("status: %d %+v", code, st)
		}
		for _, m := range st.Members {
			if !m.Healthy || m.LastIndex == 0 || m.AppliedIndex == 0 {
				t.Errorf("member: %+v", m)
			}
		}
		if code := ask("POST", wire.PathTransfer, "X-Admin", `{"name":"nobody"}`, nil); code != 404 {
			t.Errorf("transfer to nobody: %d", code)
		}
		var moved wire.TransferResponse
		if code := ask("POST", wire.PathTransfer, "X-Admin", `{"name":"`+follower.Name()+`"}`, &moved); code != 200 || moved.Leader != follower.Name() {
			t.Errorf("transfer: %d %+v", code, moved)
		}
		if code := ask("POST", wire.PathTransfer, "X-Admin", `{}`, &moved); code != 200 || moved.Leader == follower.Name() {
			t.Errorf("transfer to whoever is best: %d %+v", code, moved)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if status, _, err := c.write(ctx, c.hosts[0], "PUT", "/r", "x"); err != nil || status != 200 {
			t.Errorf("write after transfers: %d, %v", status, err)
		}
	})
}
