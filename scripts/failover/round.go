package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/api/wire"
)

// ack is an acknowledged write.
type ack struct {
	at           time.Time
	took         time.Duration
	server, name string
}

// lose takes the leader away under writes, measures, and brings it back.
func (b *bench) lose(ctx context.Context, round int) (sample, error) {
	var st *wire.ClusterStatus
	if err := poll(ctx, func() (err error) {
		for _, s := range b.servers {
			if st, err = b.healthy(ctx, s, len(b.servers)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return sample{}, err
	}
	time.Sleep(b.settle)
	leader := b.servers[slices.IndexFunc(b.servers, func(s *server) bool { return s.name == st.Leader })]
	machine := watchMachine()
	writing, stop := context.WithCancel(ctx)
	var writers sync.WaitGroup
	for _, s := range b.servers {
		for w := range perServer {
			writers.Go(func() { b.write(writing, s, fmt.Sprintf("%d-%s%d", round, s.name, w)) })
		}
	}
	pause(ctx, before)
	at := time.Now()
	taken := b.take(leader)
	pause(ctx, b.after)
	stop()
	stood := machine()
	err := b.bring(leader)
	writers.Wait()
	if taken != nil {
		err = taken
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return sample{}, err
	}
	begun, gap := b.gap(at)
	s := sample{Round: round + 1, Leader: leader.name, Gap: gap.Milliseconds(), Began: begun.Sub(at).Milliseconds(), Stood: stood.Milliseconds()}
	if s.Elected, s.Controllers, err = b.milestones(leader, at); err != nil {
		return s, err
	}
	if gap > b.slow {
		fmt.Printf("--- round %d was slow: %s of %s at 0 ms, no acknowledgement from %d ms on for %d ms\n", round+1, b.fault, leader.name, s.Began, s.Gap)
		err = b.tell(at, min(s.Began, 0), s.Began+s.Gap+50)
	}
	b.mu.Lock()
	b.acks = nil
	b.mu.Unlock()
	return s, err
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (b *bench) write(ctx context.Context, s *server, writer string) {
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("f-%s-%05d", writer, n)
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeBound)
		begun := time.Now()
		_, err := s.client.CoreV1().ConfigMaps("default").Create(bound, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "1"}},
		}, metav1.CreateOptions{})
		cancel()
		if err != nil {
			if apierrors.IsAlreadyExists(err) {
				fmt.Fprintln(os.Stderr, "a create was applied and then refused:", name)
			}
			time.Sleep(5 * time.Millisecond)
			continue
		}
		now := time.Now()
		b.mu.Lock()
		b.acks = append(b.acks, ack{now, now.Sub(begun), s.name, name})
		b.acked[name] = true
		b.mu.Unlock()
		pause(ctx, b.pace)
	}
}

// gap is the longest time without an acknowledgement that ended after the
// fault, and when it began: long after the fault, it is something else's.
func (b *bench) gap(fault time.Time) (begun time.Time, gap time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.SortFunc(b.acks, func(x, y ack) int { return x.at.Compare(y.at) })
	// When the writers have stopped, what still waits at the lost server is
	// acknowledged when it is back.
	end := fault.Add(b.after)
	last := fault.Add(-before)
	ended := ack{at: end}
	for _, a := range append(slices.Clone(b.acks), ended) {
		if a.at.After(end) {
			a = ended
		}
		if d := a.at.Sub(last); a.at.After(fault) && d > gap {
			begun, gap = last, d
		}
		last = a.at
	}
	return begun, gap
}

// line is one of a server's log.
type line struct {
	at           time.Time
	server, text string
}

var stamp = regexp.MustCompile(`^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\S+) (.*)$`)

// lines reads what the servers logged between two moments.
func (b *bench) lines(from, to time.Time) (all []line, err error) {
	for _, s := range b.servers {
		f, err := os.Open(filepath.Join(b.dir, s.name+".log"))
		if err != nil {
			return nil, err
		}
		in := bufio.NewScanner(f)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			m := stamp.FindStringSubmatch(in.Text())
			if m == nil {
				continue
			}
			at, err := time.Parse("2006-01-02T15:04:05.000Z0700", m[1])
			if err == nil && !at.Before(from.Truncate(time.Millisecond)) && at.Before(to) {
				all = append(all, line{at, s.name, m[2]})
			}
		}
		if err := cmp.Or(in.Err(), f.Close()); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(all, func(x, y line) int { return x.at.Compare(y.at) })
	return all, nil
}

// milestones finds in the survivors' logs when one of them led with its state
// complete, and when its controllers had all reconciled once.
func (b *bench) milestones(old *server, fault time.Time) (elected, controllers int64, err error) {
	elected, controllers = -1, -1
	all, err := b.lines(fault, fault.Add(b.after))
	for _, l := range all {
		since := l.at.Sub(fault).Milliseconds()
		switch {
		case l.server == old.name:
		case elected < 0 && strings.Contains(l.text, "leadership: leading=true"):
			elected = since
		case controllers < 0 && strings.Contains(l.text, "every controller has reconciled once"):
			controllers = since
		}
	}
	return elected, controllers, err
}

// dull is what the servers' logs say all the time.
var dull = regexp.MustCompile(`controllers: (reconciled|controller st|overtaken)|upkeep|accepted connection`)

// tell prints what the servers logged and acknowledged between two moments,
// in milliseconds after the fault.
func (b *bench) tell(fault time.Time, first, last int64) error {
	from, to := fault.Add(time.Duration(first)*time.Millisecond), fault.Add(time.Duration(last)*time.Millisecond)
	all, err := b.lines(from, to)
	if err != nil {
		return err
	}
	b.mu.Lock()
	for _, a := range b.acks {
		if a.at.After(from.Add(-20*time.Millisecond)) && a.at.Before(to) {
			all = append(all, line{a.at, a.server, fmt.Sprintf("acknowledged %s after %v", a.name, a.took.Round(time.Millisecond))})
		}
	}
	b.mu.Unlock()
	slices.SortStableFunc(all, func(x, y line) int { return x.at.Compare(y.at) })
	acks := 0
	for _, l := range all {
		if strings.HasPrefix(l.text, "acknowledged") {
			if acks++; acks > 40 {
				continue
			}
		}
		if !dull.MatchString(l.text) {
			fmt.Printf("%6.0f ms %s: %.240s\n", float64(l.at.Sub(fault).Microseconds())/1000, l.server, l.text)
		}
	}
	return nil
}
