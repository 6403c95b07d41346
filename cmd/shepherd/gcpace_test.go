package main

import (
	"runtime/metrics"
	"testing"
)

func TestGCPace(t *testing.T) {
	const mib = 1 << 20
	p := gcPace{percent: gcIdle}
	var cycles uint64
	step := func(collections, live uint64, want int) {
		t.Helper()
		cycles += collections
		if p.percent = p.next(cycles, live); p.percent != want {
			t.Fatalf("after %d collections with %d MiB alive: %d %%, want %d", collections, live/mib, p.percent, want)
		}
	}
	step(0, 15*mib, 100)
	step(1, 15*mib, 100) // one collection a second is no load
	step(3, 15*mib, 400)
	step(1, 60*mib, 400) // fewer collections are what it was for
	step(0, 60*mib, 400)
	step(1, 128*mib, 200) // the garbage of a larger heap is bounded
	step(1, 1024*mib, 100)
	step(2, 15*mib, 400)
	for range gcCalmSteps - 1 {
		step(0, 15*mib, 400)
	}
	step(0, 15*mib, 100)
	step(1, 15*mib, 100)
}

func TestGCPaceMetricsExist(t *testing.T) {
	samples := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	for _, s := range samples {
		if s.Value.Kind() != metrics.KindUint64 {
			t.Errorf("the runtime does not measure %s", s.Name)
		}
	}
}
