package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Bounds of the herd after the leader was killed.
const (
	herdFactor = 3                // the busiest second, of the mean before
	herdCalm   = 30 * time.Second // from then on no second is busier than that, and nothing fails
)

// second is what happened in one.
type second struct{ beats, others, dials, failed int64 }

func (s second) requests() int64 { return s.beats + s.others }

func (f *fleet) total() second {
	return second{f.beats.Load(), f.others.Load(), f.dials.Load(), f.failed.Load()}
}

func (s second) minus(o second) second {
	return second{s.beats - o.beats, s.others - o.others, s.dials - o.dials, s.failed - o.failed}
}

func (b *bench) measure(ctx context.Context) error {
	if !pause(ctx, b.settle) {
		return ctx.Err()
	}
	st, err := b.statusOf(ctx)
	if err != nil {
		return err
	}
	leader, term := b.byName(st.Leader), st.Term
	logs, err := b.logEnds()
	if err != nil {
		return err
	}
	used := map[*server]time.Duration{}
	for _, s := range b.servers {
		if used[s], err = s.cpu(); err != nil {
			return err
		}
	}
	begun := time.Now()
	b.fleet.worst.Store(0)
	seconds, killed, err := b.record(ctx, leader)
	if err != nil {
		return err
	}
	length := time.Since(begun)
	fmt.Printf("leader %s, term %d; %d agents, one heartbeat in %v each, new connections: %t, watches: %t, %d burners, %v:\n",
		st.Leader, term, b.agents, b.every, b.reconnect, b.watch, b.burners, length.Round(time.Second))
	for _, s := range b.servers {
		if now, err := s.cpu(); err == nil && s.cmd.ProcessState == nil {
			fmt.Printf("  CPU of server %s                 %.1f %% of a core\n", s.name, 100*float64(now-used[s])/float64(length))
		}
	}
	lines, err := b.logged(logs)
	if err != nil {
		return err
	}
	fmt.Printf("  lines logged by all servers     %d\n", len(lines))
	for _, l := range lines[:min(len(lines), 20)] {
		fmt.Println("    " + l)
	}
	fmt.Printf("  slowest heartbeat               %v\n", time.Duration(b.fleet.worst.Load()).Round(time.Millisecond))
	return errors.Join(b.judge(ctx, leader, term, killed >= 0), herd(seconds, killed))
}

// record counts every second, and kills the leader after a third of the time.
func (b *bench) record(ctx context.Context, leader *server) (seconds []second, killed int, err error) {
	killed = -1
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := b.fleet.total()
	for n := range int(b.length / time.Second) {
		if b.kill && killed < 0 && n >= int(b.length/time.Second)/3 {
			killed = n
			fmt.Println("the leader is killed")
			if err := leader.cmd.Process.Kill(); err != nil {
				return nil, 0, err
			}
			_ = leader.cmd.Wait() // it was killed
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
		now := b.fleet.total()
		s := now.minus(last)
		last = now
		seconds = append(seconds, s)
		fmt.Printf("%4d s: %d heartbeats, %d other requests, %d connections, %d failures\n", n+1, s.beats, s.others, s.dials, s.failed)
	}
	return seconds, killed, nil
}

// judge fails if an election was held that nobody caused, or a node was
// declared dead.
func (b *bench) judge(ctx context.Context, leader *server, term uint64, killed bool) error {
	st, err := b.statusOf(ctx)
	if err != nil {
		return err
	}
	var errs []error
	most := term
	if killed {
		most++
	}
	fmt.Printf("  leader and term at the end      %s, %d\n", st.Leader, st.Term)
	if st.Term > most || !killed && st.Leader != leader.name {
		errs = append(errs, fmt.Errorf("term %d at the end, at most %d was expected: somebody held an election", st.Term, most))
	}
	dead, err := b.dead(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	fmt.Printf("  nodes declared dead             %d\n", len(dead))
	if len(dead) > 0 {
		errs = append(errs, fmt.Errorf("%d live nodes are not ready: %s", len(dead), strings.Join(dead[:min(len(dead), 5)], ", ")))
	}
	return errors.Join(errs...)
}

// herd judges the rate of requests after the kill by that before.
func herd(seconds []second, killed int) error {
	var steady []float64
	mean := 0.0
	for _, s := range seconds[:max(killed, 0)] {
		steady = append(steady, float64(s.requests()))
		mean += float64(s.requests()) / float64(killed)
	}
	if killed <= 0 {
		return nil
	}
	peak, calm := 0.0, time.Duration(0)
	for i, s := range seconds[killed:] {
		r := float64(s.requests())
		peak = max(peak, r)
		if r > 1.5*max(mean, quantile(steady, 1)) || s.failed > 0 {
			calm = time.Duration(i+1) * time.Second
		}
	}
	fmt.Printf("  requests a second               %.0f before, at most %.0f after: %.1f times\n", mean, peak, peak/mean)
	fmt.Printf("  calm after                      %v\n", calm)
	if peak > herdFactor*mean || calm > herdCalm {
		return fmt.Errorf("the herd made %.1f times as many requests, for %v: at most %d times and %v are allowed", peak/mean, calm, herdFactor, herdCalm)
	}
	return nil
}

// logEnds is how long each server's log is.
func (b *bench) logEnds() (map[*server]int64, error) {
	ends := map[*server]int64{}
	for _, s := range b.servers {
		info, err := os.Stat(s.log.Name())
		if err != nil {
			return nil, err
		}
		ends[s] = info.Size()
	}
	return ends, nil
}

// logged is what the servers have logged since.
func (b *bench) logged(from map[*server]int64) (lines []string, err error) {
	for _, s := range b.servers {
		f, err := os.Open(s.log.Name())
		if err != nil {
			return nil, err
		}
		_, err = f.Seek(from[s], io.SeekStart)
		in := bufio.NewScanner(f)
		in.Buffer(nil, 1<<20)
		for err == nil && in.Scan() {
			lines = append(lines, s.name+": "+in.Text())
		}
		if err = errors.Join(err, in.Err(), f.Close()); err != nil {
			return nil, err
		}
	}
	return lines, nil
}
