// Command etcdload writes to an etcd cluster and prints what it measured as
// JSON, for the benchmark beside it.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// result is what the benchmark reads.
type result struct {
	Micros  []int64       // of each acknowledged write
	Elapsed time.Duration // over all
	Errors  int
	First   string // error
}

func main() {
	endpoints := flag.String("endpoints", "", "the members' client URLs, comma-separated")
	dir := flag.String("certs", "", "directory of ca.crt, client.crt and client.key")
	writers := flag.Int("writers", 1, "writers at once")
	conns := flag.Int("conns", 1, "connections that they share, spread over the members from the leader on")
	size := flag.Int("size", 1024, "bytes of a value")
	runFor := flag.Duration("for", 3*time.Second, "how long to write")
	prefix := flag.String("prefix", "bench", "of the keys")
	flag.Parse()
	if err := run(strings.Split(*endpoints, ","), *dir, *writers, *conns, *size, *runFor, *prefix); err != nil {
		fmt.Fprintln(os.Stderr, "etcdload:", err)
		os.Exit(1)
	}
}

func run(endpoints []string, dir string, writers, conns, size int, runFor time.Duration, prefix string) error {
	cfg, err := tlsConfig(dir)
	if err != nil {
		return err
	}
	connect := func(endpoint string) (*clientv3.Client, error) {
		return clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, TLS: cfg, DialTimeout: 10 * time.Second})
	}
	if endpoints, err = leaderFirst(endpoints, connect); err != nil {
		return err
	}
	clients := make([]*clientv3.Client, conns)
	for i := range clients {
		c, err := connect(endpoints[i%len(endpoints)])
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, err = c.Get(ctx, "connected")
		cancel()
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		clients[i] = c
	}
	return json.NewEncoder(os.Stdout).Encode(write(clients, writers, size, runFor, prefix))
}

func tlsConfig(dir string) (*tls.Config, error) {
	ca, err := os.ReadFile(dir + "/ca.crt")
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("no CA")
	}
	cert, err := tls.LoadX509KeyPair(dir+"/client.crt", dir+"/client.key")
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}}, nil
}

// leaderFirst waits until each member knows the leader.
func leaderFirst(endpoints []string, connect func(string) (*clientv3.Client, error)) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var ordered []string
	for _, e := range endpoints {
		c, err := connect(e)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		for {
			st, err := c.Status(ctx, e)
			if err == nil && st.Leader != 0 {
				if st.Leader == st.Header.MemberId {
					ordered = append([]string{e}, ordered...)
				} else {
					ordered = append(ordered, e)
				}
				break
			}
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("%s knows no leader: %w", e, err)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return ordered, nil
}

func write(clients []*clientv3.Client, writers, size int, runFor time.Duration, prefix string) result {
	value := strings.Repeat("x", size)
	var mu sync.Mutex
	var all result
	var done sync.WaitGroup
	start := time.Now()
	end := start.Add(runFor)
	for w := range writers {
		done.Go(func() {
			var mine []int64
			c := clients[w%len(clients)]
			for n := 0; ; n++ {
				began := time.Now()
				if !began.Before(end) {
					break
				}
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				_, err := c.Put(ctx, fmt.Sprintf("/%s/%d-%d", prefix, w, n), value)
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
