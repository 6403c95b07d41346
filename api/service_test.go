package api

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/fsm"
)

const services = "/api/v1/namespaces/default/services"

// reservations are the names of what is reserved.
func (f *fixture) reservations() []string {
	var names []string
	for o := range f.store.View().List(fsm.ReservationResource, "") {
		names = append(names, o.Key.Name)
	}
	return names
}

func (f *fixture) wantReservations(want ...string) {
	f.t.Helper()
	slices.Sort(want)
	if got := f.reservations(); !slices.Equal(got, want) {
		f.t.Errorf("reserved %v, want %v", got, want)
	}
}

func serviceBody(name, spec string) string {
	return `{"metadata":{"name":"` + name + `"},"spec":{"selector":{"a":"b"},` + spec + `"ports":[{"port":80}]}}`
}

func TestServiceAllocation(t *testing.T) {
	f := newFixture(t)
	r := f.want(f.do("POST", services, typeJSON, serviceBody("a", "")), 201, `"ipFamilies":["IPv4"]`)
	ip := r.text("spec.clusterIP")
	if addr, err := netip.ParseAddr(ip); err != nil || !f.server.cfg.Write.ServiceCIDR.Contains(addr) {
		t.Fatalf("cluster IP %q", ip)
	}
	f.wantReservations("clusterip/" + ip)
	held := f.store.View().Get(clusterIPKey(ip))
	if string(held.Data) != "services/default/a" || held.UID != r.text("metadata.uid") {
		t.Errorf("reserved for %s %s", held.Data, held.UID)
	}
	f.check(t, []rule{
		{"taken address", "POST", services, "", serviceBody("b", `"clusterIP":"`+ip+`",`), 422, "already allocated"},
		{"address of elsewhere", "POST", services, "", serviceBody("b", `"clusterIP":"192.0.2.1",`), 422, "not in the valid range"},
		{"address of the network", "POST", services, "", serviceBody("b", `"clusterIP":"10.43.0.0",`), 422, "not in the valid range"},
		{"no address at all", "POST", services, "", serviceBody("b", `"clusterIP":"x",`), 422, "clusterIP"},
		{"dual stack", "POST", services, "", serviceBody("b", `"ipFamilyPolicy":"RequireDualStack",`), 422, "dual-stack"},
		{"IPv6", "POST", services, "", serviceBody("b", `"ipFamilies":["IPv6"],`), 422, "not configured on this cluster"},
		{"node port out of range", "POST", services, "", `{"metadata":{"name":"b"},"spec":{"type":"NodePort","ports":[{"port":80,"nodePort":80}]}}`, 422, "not in the valid range"},
		{"dry run", "POST", services + "?dryRun=All", "", serviceBody("b", ""), 201, `"clusterIP":"10.43.`},
		{"headless", "POST", services, "", serviceBody("headless", `"clusterIP":"None",`), 201, `"clusterIP":"None"`},
		{"external name", "POST", services, "", `{"metadata":{"name":"ext"},"spec":{"type":"ExternalName","externalName":"example.org"}}`, 201, `"ExternalName"`},
	})
	f.wantReservations("clusterip/" + ip)
	f.want(f.do("DELETE", services+"/a", "", ""), 200, "Success")
	f.wantReservations()
}

func TestServiceUpdatesKeepWhatIsAllocated(t *testing.T) {
	f := newFixture(t)
	r := f.want(f.do("POST", services, typeJSON, serviceBody("a", `"type":"NodePort",`)), 201, "")
	ip := r.text("spec.clusterIP")
	svc, err := f.typed().CoreV1().Services("default").Get(context.Background(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	port := svc.Spec.Ports[0].NodePort
	f.wantReservations("clusterip/"+ip, nodePortKey(port).Name)
	f.unchanged(func() {
		// What kubectl replace sends: the manifest.
		f.want(f.do("PUT", services+"/a", typeJSON, serviceBody("a", `"type":"NodePort",`)), 200, ip)
	})
	f.check(t, []rule{
		{"other address", "PATCH", services + "/a", mergePatch, `{"spec":{"clusterIP":"10.43.9.9","clusterIPs":["10.43.9.9"]}}`, 422, "immutable"},
		{"chosen node port", "PATCH", services + "/a", strategic, `{"spec":{"ports":[{"port":80,"nodePort":30123}]}}`, 200, `"nodePort":30123`},
	})
	f.wantReservations("clusterip/"+ip, "nodeport/30123")
	f.want(f.do("POST", services, typeJSON, `{"metadata":{"name":"b"},"spec":{"type":"NodePort","ports":[{"port":80,"nodePort":30123}]}}`), 422, "already allocated")

	f.want(f.do("PATCH", services+"/a", mergePatch, `{"spec":{"type":"ClusterIP"}}`), 200, ip)
	f.wantReservations("clusterip/" + ip)
	f.want(f.do("PATCH", services+"/a", mergePatch, `{"spec":{"type":"ExternalName","externalName":"example.org"}}`), 200, "example.org")
	f.wantReservations()
	r = f.want(f.do("PATCH", services+"/a", mergePatch, `{"spec":{"type":"LoadBalancer"}}`), 200, `"LoadBalancer"`)
	if len(f.reservations()) != 2 {
		t.Errorf("reserved %v for %s", f.reservations(), r.body)
	}
	// A finalizer holds the service and its addresses.
	f.want(f.do("PATCH", services+"/a", mergePatch, `{"metadata":{"finalizers":["x/y"]}}`), 200, "")
	f.want(f.do("DELETE", services+"/a", "", ""), 200, "deletionTimestamp")
	if len(f.reservations()) != 2 {
		t.Errorf("reserved %v", f.reservations())
	}
	f.want(f.do("PATCH", services+"/a", mergePatch, `{"metadata":{"finalizers":null}}`), 200, "")
	f.wantReservations()
}

func TestServicePortsOfTwoProtocolsShareANodePort(t *testing.T) {
	f := newFixture(t)
	body := func(second string) string {
		return `{"metadata":{"name":"dns"},"spec":{"type":"NodePort","clusterIP":"10.43.0.10","ports":[{"name":"t","port":53,"nodePort":30053},{"name":"u","port":` + second + `,"nodePort":30053}]}}`
	}
	f.want(f.do("POST", services, typeJSON, body(`54`)), 422, "")
	f.want(f.do("POST", services, typeJSON, body(`53,"protocol":"UDP"`)), 201, "")
	f.wantReservations("clusterip/10.43.0.10", "nodeport/30053")
}

func TestServiceAddressTakenByOthersIsDrawnAgain(t *testing.T) {
	f := newFixture(t)
	races := 3
	f.consensus.setHooks(func(cmd fsm.Command) error {
		if races--; races >= 0 {
			stolen := cmd.Ops[1]
			stolen.UID = "thief"
			f.consensus.apply(fsm.Command{Term: 1, Ops: []fsm.Op{stolen}})
		}
		return nil
	}, nil)
	r := f.want(f.do("POST", services, typeJSON, serviceBody("a", "")), 201, "")
	held := f.store.View().Get(clusterIPKey(r.text("spec.clusterIP")))
	if held == nil || held.UID != r.text("metadata.uid") || len(f.reservations()) != 4 {
		t.Errorf("%v, all %v", held, f.reservations())
	}
}

func TestServiceRangeRunsOut(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Write.ServiceCIDR = netip.MustParsePrefix("10.43.0.0/28") })
	for i := range 13 { // 16 less network, broadcast, and that of service default/kubernetes
		f.want(f.do("POST", services, typeJSON, serviceBody("s"+string(rune('a'+i)), "")), 201, "")
	}
	f.unchanged(func() { f.want(f.do("POST", services, typeJSON, serviceBody("full", "")), 422, "range is full") })
	f.want(f.do("POST", services, typeJSON, serviceBody("kubernetes", `"clusterIP":"10.43.0.1",`)), 201, "10.43.0.1")
}

func TestNodeDeletionReleasesItsRange(t *testing.T) {
	f := newFixture(t)
	f.put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Spec: corev1.NodeSpec{PodCIDR: "10.42.3.0/24", PodCIDRs: []string{"10.42.3.0/24"}}})
	node := f.store.View().Get(fsm.Key{Resource: "nodes", Name: "w1"})
	for cidr, uid := range map[string]string{"10.42.3.0/24": node.UID, "10.42.4.0/24": "other"} {
		f.consensus.apply(fsm.Command{Term: 1, Ops: []fsm.Op{reserve(podCIDRKey(cidr), node.Key, uid)}})
	}
	f.want(f.do("DELETE", "/api/v1/nodes/w1", "", ""), 200, "Success")
	f.wantReservations("podcidr/10.42.4.0-24")
}
