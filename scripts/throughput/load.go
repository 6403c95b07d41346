package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// writeBound is how long one write may take.
const writeBound = 10 * time.Second

// load is how to write.
type load struct {
	Writers int
	Conns   int // connections that the writers share
	Size    int // bytes of a value
	For     time.Duration
	Prefix  string // of the names
}

// write makes one new object.
type write func(ctx context.Context, name string, value []byte) error

// result is what a load gave. etcdload prints the same.
type result struct {
	Micros  []int64 // of each acknowledged write
	Elapsed time.Duration
	Errors  int
	First   string // error
}

// run lets all writers write at once, each one write after the other. through
// gives the way of one connection.
func (l *load) run(through func(conn int) (write, error)) result {
	var all result
	value := []byte(strings.Repeat("x", l.Size))
	ways := make([]write, max(l.Conns, 1))
	for i := range ways {
		var err error
		if ways[i], err = through(i); err != nil {
			return result{Errors: 1, First: err.Error()}
		}
	}
	var mu sync.Mutex
	var done sync.WaitGroup
	start := time.Now()
	end := start.Add(l.For)
	for w := range l.Writers {
		done.Go(func() {
			var mine []int64
			for n := 0; ; n++ {
				began := time.Now()
				if !began.Before(end) {
					break
				}
				ctx, cancel := context.WithTimeout(context.Background(), writeBound)
				err := ways[w%len(ways)](ctx, fmt.Sprintf("%s-%d-%d", l.Prefix, w, n), value)
				cancel()
				if err != nil {
					mu.Lock()
					all.Errors, all.First = all.Errors+1, err.Error()
					mu.Unlock()
					continue
				}
				mine = append(mine, time.Since(began).Microseconds())
			}
			mu.Lock()
			defer mu.Unlock()
			all.Micros = append(all.Micros, mine...)
		})
	}
	done.Wait()
	all.Elapsed = time.Since(start)
	return all
}
