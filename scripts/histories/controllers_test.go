package histories

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	webPods       = "/api/v1/namespaces/default/pods"
	webDeployment = "/apis/apps/v1/namespaces/default/deployments"
)

// TestControllersUnderFaults: whatever happens to the servers and their network
// while a Deployment is scaled, one set of controllers is at work in a term, no
// pod is bound twice, and no ReplicaSet gets more pods than it asks for. In the
// end there are as many as were asked for last, all of them at work.
func TestControllersUnderFaults(t *testing.T) {
	for i := range (*seeds + 3) / 4 {
		seed := *first + int64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { scaleUnderFaults(t, seed) })
		})
	}
}

func scaleUnderFaults(t *testing.T, seed int64) {
	s := simulate(t, seed, 3, snapshotOften)
	defer s.stop()
	o := newOverseer(t, seed)
	s.with = o.accompany
	for _, h := range s.hosts {
		s.accompany(h.up.Load())
	}
	for _, name := range nodes {
		s.must(s.send(t.Context(), s.hosts[0], "POST", "/api/v1/nodes", fmt.Sprintf(`{"metadata":{"name":%q},
			"status":{"capacity":{"cpu":"8","memory":"16Gi","pods":"110"},"conditions":[{"type":"Ready","status":"True"}]}}`, name)), http.StatusCreated)
	}
	s.must(s.send(t.Context(), s.hosts[0], "POST", webDeployment, `{"metadata":{"name":"web"},"spec":{"replicas":3,"selector":{"matchLabels":{"app":"web"}},
		"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"web"}]}}}}`), http.StatusCreated)

	stop := make(chan struct{})
	var agents, scaler sync.WaitGroup
	agents.Go(func() { s.agents(rand.New(rand.NewSource(seed*10)), stop) })
	scaling, enough := context.WithCancel(t.Context())
	scaler.Go(func() { s.scale(scaling, rand.New(rand.NewSource(seed*10+1))) })
	rng := rand.New(rand.NewSource(seed))
	for end := time.Now().Add(*duration); time.Now().Before(end); {
		s.fault(rng)
	}
	enough()
	scaler.Wait()
	s.heal()
	s.awaitScaled(1 + rng.Intn(9))
	close(stop)
	agents.Wait()
	s.converge()
	o.check()
}

var nodes = []string{"n1", "n2"}

// ask sends a request to a random server and waits for a second.
func (s *simulation) ask(ctx context.Context, rng *rand.Rand, method, path, body string) reply {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return s.send(ctx, s.hosts[rng.Intn(len(s.hosts))], method, path, body)
}

// scale asks for another number of pods again and again, and deletes them all
// now and then.
func (s *simulation) scale(ctx context.Context, rng *rand.Rand) {
	for {
		select {
		case <-time.After(time.Duration(100+rng.Intn(500)) * time.Millisecond):
		case <-ctx.Done():
			return
		}
		if rng.Intn(5) == 0 {
			s.ask(ctx, rng, "DELETE", webPods+"?labelSelector=app=web", "")
		} else {
			s.ask(ctx, rng, "PATCH", webDeployment+"/web", replicas(rng.Intn(10)))
		}
	}
}

func replicas(n int) string { return fmt.Sprintf(`{"spec":{"replicas":%d}}`, n) }

// agents are those of all nodes. Their runtime does at once what it is told.
func (s *simulation) agents(rng *rand.Rand, stop <-chan struct{}) {
	ctx := s.t.Context()
	for {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-stop:
			return
		}
		for _, name := range nodes {
			if up := s.hosts[rng.Intn(len(s.hosts))].up.Load(); up != nil {
				bound, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
				if _, err := up.node.Heartbeat(bound, name); err != nil {
					logger().Debug("heartbeat", "node", name, "error", err)
				}
				cancel()
			}
		}
		for _, pod := range pods(s.ask(ctx, rng, "GET", webPods, "")) {
			path, condition := webPods+"/"+pod.Name, fmt.Sprintf(`"uid":%q`, pod.UID)
			switch {
			case pod.Spec.NodeName == "": // nobody's
			case pod.DeletionTimestamp != nil:
				s.ask(ctx, rng, "DELETE", path, `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"preconditions":{`+condition+`}}`)
			case pod.Status.Phase != corev1.PodRunning:
				s.ask(ctx, rng, "PATCH", path+"/status", `{"metadata":{`+condition+`},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`)
			}
		}
	}
}

// pods are those of an answer; none of one that is no list.
func pods(r reply) []corev1.Pod {
	var list corev1.PodList
	if r.err != nil || r.code != http.StatusOK || json.Unmarshal([]byte(r.text), &list) != nil {
		return nil
	}
	return list.Items
}

// awaitScaled asks for a number of pods and waits until exactly these are there,
// each at work on a node.
func (s *simulation) awaitScaled(count int) {
	s.t.Helper()
	ctx := s.t.Context()
	s.poll("the Deployment is scaled", func() error {
		time.Sleep(20 * time.Millisecond)
		return s.send(ctx, s.hosts[0], "PATCH", webDeployment+"/web", replicas(count)).want(http.StatusOK)
	})
	s.poll(fmt.Sprintf("%d pods are at work", count), func() error {
		time.Sleep(50 * time.Millisecond)
		var web appsv1.Deployment
		r := s.send(ctx, s.hosts[0], "GET", webDeployment+"/web", "")
		if err := r.want(http.StatusOK); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(r.text), &web); err != nil {
			return err
		}
		at := 0
		list := pods(s.send(ctx, s.hosts[0], "GET", webPods, ""))
		for _, pod := range list {
			if pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
				at++
			}
		}
		st := web.Status
		if at != count || len(list) != count || st.ObservedGeneration != web.Generation || int(st.ReadyReplicas) != count || int(st.Replicas) != count {
			return fmt.Errorf("there are %d, of them %d at work; status %+v of generation %d", len(list), at, st, web.Generation)
		}
		return nil
	})
}
