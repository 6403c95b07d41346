package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writeTimeout bounds one write. It is long: a server that still lives sends
// the write to the next leader by itself, and the writer's wait is the gap.
const writeTimeout = 15 * time.Second

// writerPause follows a failed try, so that a dead server is not spun on.
const writerPause = 5 * time.Millisecond

// ackLog records when which write was acknowledged. It is safe for concurrent use.
type ackLog struct {
	mu        sync.Mutex
	times     []time.Time
	acked     map[string]bool
	ambiguous int
}

func (l *ackLog) ack(number string) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.acked == nil {
		l.acked = map[string]bool{}
	}
	l.acked[number] = true
	l.times = append(l.times, now)
}

func (l *ackLog) unknown() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ambiguous++
}

// gapAround returns the longest time without an acknowledgement that ended
// after the fault.
func (l *ackLog) gapAround(fault time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortFunc(l.times, time.Time.Compare)
	gap := time.Duration(0)
	for i, t := range l.times {
		if i > 0 && t.After(fault) {
			gap = max(gap, t.Sub(l.times[i-1]))
		}
	}
	if n := len(l.times); n == 0 || l.times[n-1].Before(fault) {
		return time.Since(fault) // nothing came back
	}
	return gap
}

// write creates numbered ConfigMaps, each through the next replica, until ctx
// ends. A number is sent again only when it cannot have reached a server, so
// one that exists twice was applied twice.
func (d *drill) write(ctx context.Context, replicas []replica, run string, writer int, log *ackLog) {
	turn := writer
	for n := 0; ctx.Err() == nil; n++ {
		number := fmt.Sprintf("%d-%06d", writer, n)
		for ctx.Err() == nil {
			r := replicas[turn%len(replicas)]
			turn++
			err := d.writeOne(ctx, r, run, number)
			if err == nil {
				log.ack(number)
				break
			}
			_ = sleep(ctx, writerPause) // the loop ends by itself with ctx
			if !neverArrived(err) {
				log.unknown()
				break
			}
		}
	}
}

func (d *drill) writeOne(ctx context.Context, r replica, run, number string) error {
	// Not ctx: a write that was sent is waited for, also when the drill ends.
	wctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	_, err := r.client.CoreV1().ConfigMaps(d.namespace).Create(wctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "drill-" + run + "-" + number + "-",
			Labels:       map[string]string{drillLabel: run, numberLabel: number},
		},
		Data: map[string]string{"number": number},
	}, metav1.CreateOptions{})
	return err
}

// neverArrived reports whether the write certainly did not take effect: the
// server was not reached, or it refused.
func neverArrived(err error) bool {
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) {
		return true
	}
	return apierrors.IsTooManyRequests(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err)
}

// readBack compares what each replica holds with what was acknowledged.
func (d *drill) readBack(ctx context.Context, replicas []replica, run string, log *ackLog) (*report, error) {
	rep := &report{acknowledged: len(log.acked), ambiguous: log.ambiguous}
	for _, r := range replicas {
		s := serverReport{name: r.server.context}
		rctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		list, err := r.client.CoreV1().ConfigMaps(d.namespace).List(rctx, metav1.ListOptions{LabelSelector: drillLabel + "=" + run})
		cancel()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			s.unreachable = err.Error()
			rep.servers = append(rep.servers, s)
			continue
		}
		found := map[string]int{}
		for i := range list.Items {
			found[list.Items[i].Labels[numberLabel]]++
		}
		for number := range log.acked {
			if found[number] == 0 {
				s.lost = append(s.lost, number)
			}
		}
		for number, n := range found {
			if n > 1 {
				s.doubled = append(s.doubled, number)
			}
		}
		slices.Sort(s.lost)
		slices.Sort(s.doubled)
		rep.servers = append(rep.servers, s)
	}
	return rep, nil
}
