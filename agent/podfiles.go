package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	machineResolvConf = "/etc/resolv.conf"
	// maxHostname is the kernel's limit less the terminating zero.
	maxHostname = 63
)

// hostname is what the pod's containers see.
func hostname(pod *corev1.Pod) string {
	name := pod.Spec.Hostname
	if name == "" {
		name = pod.Name
	}
	if len(name) > maxHostname {
		name = strings.TrimRight(name[:maxHostname], "-.")
	}
	return name
}

// hostsFile is the pod's /etc/hosts.
func hostsFile(pod *corev1.Pod, hostname, ip string) string {
	var b strings.Builder
	b.WriteString("# Managed by Shepherd.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	b.WriteString("fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
	if ip != "" {
		names := []string{hostname}
		if pod.Spec.Subdomain != "" {
			names = slices.Insert(names, 0, fmt.Sprintf("%s.%s.%s.svc.cluster.local", hostname, pod.Spec.Subdomain, pod.Namespace))
		}
		fmt.Fprintf(&b, "%s\t%s\n", ip, strings.Join(names, "\t"))
	}
	for _, a := range pod.Spec.HostAliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.String()
}

// resolver is the content of a resolv.conf.
type resolver struct{ servers, searches, options []string }

// resolvConf is the pod's /etc/resolv.conf by its DNS policy: the cluster's
// name servers, the machine's, or none but those of dnsConfig.
func resolvConf(pod *corev1.Pod, dns DNSConfig, machineFile string) string {
	var r resolver
	policy := pod.Spec.DNSPolicy
	cluster := policy == corev1.DNSClusterFirstWithHostNet || !pod.Spec.HostNetwork && (policy == corev1.DNSClusterFirst || policy == "")
	switch {
	case policy == corev1.DNSNone:
	case cluster && len(dns.Servers) > 0:
		r.servers = slices.Clone(dns.Servers)
		r.searches = []string{pod.Namespace + ".svc." + dns.Domain, "svc." + dns.Domain, dns.Domain}
		r.options = []string{"ndots:5"}
	default:
		if data, err := os.ReadFile(machineFile); err == nil {
			r = parseResolver(string(data))
		}
	}
	if c := pod.Spec.DNSConfig; c != nil {
		r.servers = appendNew(r.servers, c.Nameservers)
		r.searches = appendNew(r.searches, c.Searches)
		for _, o := range c.Options {
			text := o.Name
			if o.Value != nil {
				text += ":" + *o.Value
			}
			r.options = slices.DeleteFunc(r.options, func(s string) bool { return s == o.Name || strings.HasPrefix(s, o.Name+":") })
			r.options = append(r.options, text)
		}
	}
	return r.String()
}

func appendNew(to, more []string) []string {
	for _, s := range more {
		if !slices.Contains(to, s) {
			to = append(to, s)
		}
	}
	return to
}

func parseResolver(text string) resolver {
	var r resolver
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			r.servers = append(r.servers, fields[1])
		case "search", "domain":
			r.searches = fields[1:]
		case "options":
			r.options = append(r.options, fields[1:]...)
		}
	}
	return r
}

func (r *resolver) String() string {
	var b strings.Builder
	if len(r.searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(r.searches, " "))
	}
	for _, s := range r.servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(r.options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(r.options, " "))
	}
	if b.Len() == 0 {
		return "# No name servers are configured.\n" // empty would mean the machine's
	}
	return b.String()
}
