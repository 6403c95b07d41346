package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// measurements are the steps of a benchmark run.
func (d *demo) measurements() []step {
	return []step{
		{"Three servers on three machines", d.startServers},
		{"Two workers", d.startWorkers},
		{"Memory of idle daemons", d.idleMemory},
		{"Apply a Deployment of 6 and a Service", d.apply},
		{fmt.Sprintf("Kill the leader %d times", d.kills), d.killRepeatedly},
	}
}

func (d *demo) idleMemory(context.Context) error {
	for _, group := range []struct {
		what  string
		hosts []*host
	}{{"server", d.servers}, {"agent", d.workers}} {
		var sizes []string
		for _, h := range group.hosts {
			mb, err := rss(h.cmd.Process.Pid)
			if err != nil {
				return err
			}
			sizes = append(sizes, strconv.Itoa(mb))
		}
		d.results.add("memory (RSS) of each idle "+group.what, "%s MB", strings.Join(sizes, ", "))
	}
	return nil
}

// rss is a process's resident memory in megabytes.
func rss(pid int) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		if f := strings.Fields(string(line)); len(f) == 3 && f[0] == "VmRSS:" {
			kb, err := strconv.Atoi(f[1])
			return (kb*1024 + 500_000) / 1_000_000, err // the kernel's kB are of 1024 bytes
		}
	}
	return 0, fmt.Errorf("process %d has no VmRSS", pid)
}

var gapLine = regexp.MustCompile(`(?m)^gap +(\d+) ms`)

// killRepeatedly keeps every sample. A drill fails on any loss.
func (d *demo) killRepeatedly(ctx context.Context) error {
	var gaps []int
	for range d.kills {
		out, err := d.drill(ctx, "--before", "1s", "--after", "3s")
		if err != nil {
			return err
		}
		m := gapLine.FindStringSubmatch(out)
		if m == nil {
			return fmt.Errorf("the drill did not say its gap: %s", out)
		}
		gap, err := strconv.Atoi(m[1])
		if err != nil {
			return err
		}
		fmt.Printf("   gap %d ms\n", gap)
		gaps = append(gaps, gap)
		if err := d.start(d.dead()); err != nil {
			return err
		}
		if err := d.allServersHealthy(ctx); err != nil {
			return err
		}
	}
	slices.Sort(gaps)
	d.results.add(fmt.Sprintf("kill -9 of the leader, %d times: gap p50 / p90 / max", len(gaps)), "%d / %d / %d ms",
		quantile(gaps, 50), quantile(gaps, 90), gaps[len(gaps)-1])
	d.results.add("all samples, ms", "%s", strings.Trim(fmt.Sprint(gaps), "[]"))
	d.results.add("acknowledged writes lost or doubled, pods restarted", "0, 0")
	return nil
}

// quantile is the smallest sample that q percent of the sorted ones do not exceed.
func quantile(sorted []int, q int) int { return sorted[(len(sorted)*q+99)/100-1] }
