package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// backupRetry bounds the time until a backup that failed is tried again.
	backupRetry = time.Minute
	// backupLook bounds the time between two looks at the directory: others may
	// remove files from it.
	backupLook = 10 * time.Minute
)

// BackupKeeperConfig is what a BackupKeeper needs.
type BackupKeeperConfig struct {
	BackupSchedule
	Source *BackupSource
	// LeadershipChanged is closed when this server begins or ceases to lead.
	LeadershipChanged func() <-chan struct{}
	Logger            hclog.Logger
	Registerer        prometheus.Registerer // nil if nobody wants metrics
}

// BackupKeeper makes backups on a schedule, while this server leads, and removes
// old ones. When the next one is due follows from the files in the directory:
// where the servers share it, a change of leader neither doubles a backup nor
// puts it off, and where they do not, a new leader begins with one.
type BackupKeeper struct {
	cfg   BackupKeeperConfig
	whole map[string]bool // files that were read already, and whether they are

	latest  prometheus.Gauge
	results *prometheus.CounterVec
	seconds prometheus.Histogram
}

// NewBackupKeeper returns a keeper that Run sets to work. The schedule must be
// valid and not off.
func NewBackupKeeper(cfg BackupKeeperConfig) (*BackupKeeper, error) {
	k := &BackupKeeper{
		cfg: cfg, whole: make(map[string]bool),
		latest: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "shepherd_backup_last_success_timestamp_seconds",
			Help: "When the newest good backup in --backup-dir was made, as seen by this server when it led; 0 if it saw none. Alert on the highest of all servers.",
		}),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "shepherd_backups_total",
			Help: "Scheduled backups by result: saved, failed, or unpruned (saved too, but old ones could not be removed).",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "shepherd_backup_seconds", Help: "Time to make a scheduled backup and to read it back.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 14),
		}),
	}
	for _, r := range []string{"saved", "failed", "unpruned"} {
		k.results.WithLabelValues(r)
	}
	if cfg.Registerer == nil {
		return k, nil
	}
	for _, c := range []prometheus.Collector{k.latest, k.results, k.seconds} {
		if err := cfg.Registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return k, nil
}

// Run makes backups until stopCh is closed. One that is being made then, or when
// leadership is lost, is given up. It returns when nothing of it runs any more.
func (k *BackupKeeper) Run(stopCh <-chan struct{}) {
	for {
		changed := k.cfg.LeadershipChanged()
		wait := backupLook
		if _, leading := k.cfg.Source.Cluster.Leadership(); leading {
			wait = k.keepUntil(stopCh, changed)
		}
		select {
		case <-stopCh:
			return
		default: // it goes before the timer
		}
		select {
		case <-time.After(wait):
		case <-changed:
		case <-stopCh:
			return
		}
	}
}

// keepUntil is keep, given up once one of the channels is closed.
func (k *BackupKeeper) keepUntil(stopCh, changed <-chan struct{}) time.Duration {
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-stopCh:
		case <-changed:
		case <-ctx.Done():
		}
		cancel()
	}()
	wait := k.keep(ctx)
	cancel()
	<-watched
	return wait
}

// keep makes a backup if one is due, and returns how long to wait then.
func (k *BackupKeeper) keep(ctx context.Context) time.Duration {
	wait, err := k.once(ctx)
	if err == nil || ctx.Err() != nil { // one that was given up is no failure
		return min(wait, backupLook)
	}
	wait = min(backupRetry, k.cfg.Interval)
	k.results.WithLabelValues("failed").Inc()
	k.cfg.Logger.Error("no scheduled backup was made; until it is, the last one is all there is, or save one by hand with sheepctl backup save",
		"dir", k.cfg.Dir, "error", err, "again-in", wait)
	return wait
}

func (k *BackupKeeper) once(ctx context.Context) (time.Duration, error) {
	finished, begun, err := k.list()
	if err != nil {
		return 0, err
	}
	now := k.cfg.Source.Cluster.Now()
	for _, b := range latestFirst(now, finished) {
		if !k.isWhole(b) {
			continue
		}
		k.latest.Set(float64(b.made.Unix()))
		if wait := b.made.Add(k.cfg.Interval).Sub(now); wait > 0 {
			return wait, nil
		}
		break
	}
	start := time.Now()
	saved, err := k.save(ctx)
	if err != nil {
		return 0, err
	}
	k.seconds.Observe(time.Since(start).Seconds())
	k.results.WithLabelValues("saved").Inc()
	k.latest.Set(float64(saved.made.Unix()))
	k.cfg.Logger.Info("a scheduled backup was made", "file", filepath.Join(k.cfg.Dir, saved.name), "took", time.Since(start).Round(time.Millisecond))
	if err := k.prune(saved, finished, begun); err != nil {
		k.results.WithLabelValues("unpruned").Inc()
		k.cfg.Logger.Error("old backups could not be removed and take up space; remove them by hand or correct the directory's owner and mode", "dir", k.cfg.Dir, "error", err)
	}
	return max(0, saved.made.Add(k.cfg.Interval).Sub(k.cfg.Source.Cluster.Now())), nil
}

// list returns this cluster's scheduled backups, and those that were begun.
func (k *BackupKeeper) list() (finished, begun []savedBackup, err error) {
	entries, err := os.ReadDir(k.cfg.Dir)
	if err != nil {
		return nil, nil, describe("look for backups in", k.cfg.Dir, err)
	}
	id := k.cfg.Source.CA.ClusterID()
	for _, e := range entries {
		b, ok := parseBackupName(e.Name())
		switch {
		case !ok || b.cluster != id || !e.Type().IsRegular():
		case b.begun:
			begun = append(begun, b)
		default:
			finished = append(finished, b)
		}
	}
	return finished, begun, nil
}

// isWhole reads a file's checksum, once in the keeper's life: it never changes.
func (k *BackupKeeper) isWhole(b savedBackup) bool {
	whole, known := k.whole[b.name]
	if known {
		return whole
	}
	path := filepath.Join(k.cfg.Dir, b.name)
	h, err := ReadBackupHeader(path)
	if err == nil && h.ClusterID != b.cluster {
		err = fmt.Errorf("%w: it is one of cluster %s", ErrBackupDamaged, h.ClusterID)
	}
	if err != nil {
		k.cfg.Logger.Warn("a backup does not count, and is left where it is; see the disk, and remove the file", "file", path, "error", err)
	}
	k.whole[b.name] = err == nil
	return err == nil
}

// save makes one backup.
func (k *BackupKeeper) save(ctx context.Context) (savedBackup, error) {
	secret, err := k.cfg.passphrase()
	if err != nil {
		return savedBackup{}, err
	}
	h, write, err := k.cfg.Source.Take(ctx)
	if err != nil {
		return savedBackup{}, err
	}
	name := nameBackup(h)
	_, err = SaveBackup(filepath.Join(k.cfg.Dir, name), secret, func(w io.Writer) error {
		return write(&writerUntil{ctx, w}, secret)
	})
	if err != nil {
		return savedBackup{}, err
	}
	k.whole[name] = true // it was read back
	saved, ok := parseBackupName(name)
	if !ok {
		return saved, fmt.Errorf("the backup %s has a name that its own schedule does not know", name)
	}
	return saved, nil
}

// prune removes what the new backup makes superfluous, of this cluster alone.
func (k *BackupKeeper) prune(saved savedBackup, finished, begun []savedBackup) error {
	var good []savedBackup
	for _, b := range finished {
		if k.isWhole(b) {
			good = append(good, b)
		}
	}
	var errs []error
	for _, name := range backupsToPrune(saved, k.cfg.Keep, good, begun) {
		if err := os.Remove(filepath.Join(k.cfg.Dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		delete(k.whole, name)
	}
	return errors.Join(errs...)
}

// writerUntil fails once its context has ended.
type writerUntil struct {
	ctx context.Context
	w   io.Writer
}

func (w *writerUntil) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.w.Write(p)
}
