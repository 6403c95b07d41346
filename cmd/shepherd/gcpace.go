package main

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// gcPace lets the heap grow further between two collections while garbage
// comes fast. Under a load of writes the collector takes a fifth of the
// processor to keep a heap at twice what lives, which is what an idle server
// wants; a busy one has better use for the processor than for those megabytes.
// The caller owns it; it is not safe for concurrent use.
type gcPace struct {
	percent int    // what the runtime was told last
	cycles  uint64 // collections so far, at the last step
	calm    int    // steps in a row without one
}

const (
	gcStep       = time.Second
	gcIdle       = 100       // percent; Go's default
	gcBusy       = 400       // percent, at most
	gcBusyCycles = 2         // collections in a step that make a server busy
	gcCalmSteps  = 10        // without a collection, that make it idle again
	gcMaxSlack   = 256 << 20 // bytes of garbage that a busy server may carry
)

// next is the percentage for the step that begins, by the collections so far
// and the bytes that outlived the last one.
func (p *gcPace) next(cycles, live uint64) int {
	since := cycles - p.cycles
	p.cycles = cycles
	if since > 0 {
		p.calm = 0
	} else {
		p.calm++
	}
	if p.calm >= gcCalmSteps || p.percent == gcIdle && since < gcBusyCycles {
		return gcIdle
	}
	return int(max(gcIdle, min(gcBusy, gcMaxSlack*100/max(live, 1))))
}

// paceGC adjusts the collector until stopCh is closed. What the environment
// says about it is left alone.
func paceGC(stopCh <-chan struct{}) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	defer debug.SetGCPercent(gcIdle)
	samples := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"}}
	pace := gcPace{percent: gcIdle}
	tick := time.NewTicker(gcStep)
	defer tick.Stop()
	for {
		select {
		case <-stopCh:
			return
		case <-tick.C:
		}
		metrics.Read(samples)
		if next := pace.next(samples[0].Value.Uint64(), samples[1].Value.Uint64()); next != pace.percent {
			debug.SetGCPercent(next)
			pace.percent = next
		}
	}
}
