package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkBurst writes 1 KB to each of a thousand objects again and again, by 64
// writers, on three servers with sockets and files. It reports the largest log
// and log file of any of them, and the median and the 99th percentile of the
// first and of the last tenth of the writes: with -benchtime 1000000x that is
// before and after a million. It fails if a log outgrows its bounds.
func BenchmarkBurst(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	cred := newCredentials(b)
	servers := make([]*realServer, 3)
	for i, id := range []string{"s1-00000001", "s2-00000002", "s3-00000003"} {
		servers[i] = &realServer{id: id, cred: cred, dir: b.TempDir()}
		servers[i].start(b, i == 0)
		defer servers[i].stop(b)
	}
	first := servers[0].node
	eventually(b, "nobody leads", first, func() bool { _, leading := first.Leadership(); return leading })
	for _, s := range servers[1:] {
		if err := first.AddServer(ctx, s.id, s.addr); err != nil {
			b.Fatal(err)
		}
	}
	eventually(b, "not all are voters", first, func() bool { return len(voters(first.servers())) == 3 })

	sizes := watchSizes(servers)
	took := make([]time.Duration, b.N)
	var next atomic.Int64
	var writers sync.WaitGroup
	b.ResetTimer()
	for range 64 {
		writers.Go(func() {
			for i := next.Add(1) - 1; i < int64(b.N) && !b.Failed(); i = next.Add(1) - 1 {
				began := time.Now()
				if err := servers[0].put(ctx, fmt.Sprint("o", i%1000), fmt.Sprintf("%01024d", i)); err != nil {
					b.Errorf("write %d: %v", i, err)
				}
				took[i] = time.Since(began)
			}
		})
	}
	writers.Wait()
	b.StopTimer()
	logBytes, fileBytes := sizes()
	_, snapshot := first.files.kept.latest()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
	b.ReportMetric(float64(logBytes)/(1<<20), "max-log-MiB")
	b.ReportMetric(float64(fileBytes)/(1<<20), "max-file-MiB")
	b.ReportMetric(float64(snapshot)/(1<<20), "snapshot-MiB")
	tenth := (b.N + 9) / 10
	for name, part := range map[string][]time.Duration{"first": took[:tenth], "last": took[b.N-tenth:]} {
		slices.Sort(part)
		b.ReportMetric(float64(part[tenth/2].Microseconds())/1000, name+"-p50-ms")
		b.ReportMetric(float64(part[tenth*99/100].Microseconds())/1000, name+"-p99-ms")
	}
	// Writes go on while a snapshot that is due is written; the file has room for
	// what was deleted.
	bound := 2 * (first.cfg.TrailingBytes + max(first.cfg.SnapshotBytes, 2*snapshot))
	if logBytes > bound || fileBytes > 2*bound {
		b.Errorf("the log held %d bytes in a file of %d, at most %d in %d are wanted", logBytes, fileBytes, bound, 2*bound)
	}
}

// watchSizes looks at the servers' logs until the function that it returns is
// called, which tells the most bytes of entries and of a file that any had.
func watchSizes(servers []*realServer) (end func() (logBytes, fileBytes uint64)) {
	var logBytes, fileBytes uint64
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, s := range servers {
				logBytes = max(logBytes, s.node.files.bounded.size())
				if info, err := os.Stat(filepath.Join(s.dir, logFile)); err == nil {
					fileBytes = max(fileBytes, uint64(info.Size()))
				}
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	return func() (uint64, uint64) {
		close(stop)
		<-ended
		return logBytes, fileBytes
	}
}
