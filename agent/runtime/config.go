package runtime

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Config is all that a Runtime needs to know about its machine. Several agents
// may share one host: a Runtime touches nothing outside RunDir, DataDir and
// the cgroups below CgroupRoot.
type Config struct {
	// RunDir holds what must not survive a reboot (sockets, state records);
	// best on a tmpfs. Absolute.
	RunDir string
	// DataDir holds container logs and the writable layers. Absolute, on a
	// file system that overlayfs accepts as an upper layer.
	DataDir string
	// CgroupRoot is the cgroup below which pods are placed, named relative to
	// the mount point of each cgroup hierarchy ("shepherd", "a/b").
	CgroupRoot string
	// ShimPath is the shepherd-shim binary. It is read once, by New.
	ShimPath string
	// BootIDPath names the file whose content changes with each boot.
	BootIDPath string
	// LogMaxBytes is the size at which a log file is rotated, LogMaxFiles the
	// number of files kept for each attempt, the current one included.
	LogMaxBytes int64
	LogMaxFiles int
	// StartTimeout bounds the start of a shim and of a container.
	StartTimeout time.Duration
	Logger       hclog.Logger
}

// DefaultConfig returns the settings of a machine with one agent.
func DefaultConfig() Config {
	return Config{
		RunDir:       "/run/shepherd",
		DataDir:      "/var/lib/shepherd",
		CgroupRoot:   "shepherd",
		ShimPath:     "/usr/local/bin/shepherd-shim",
		BootIDPath:   "/proc/sys/kernel/random/boot_id",
		LogMaxBytes:  10 << 20,
		LogMaxFiles:  5,
		StartTimeout: 60 * time.Second,
	}
}

// Validate names the first setting that cannot be used.
func (c *Config) Validate() error {
	for _, p := range []struct{ name, path string }{
		{"run directory", c.RunDir}, {"data directory", c.DataDir},
		{"shim path", c.ShimPath}, {"boot ID path", c.BootIDPath},
	} {
		if !filepath.IsAbs(p.path) {
			return fmt.Errorf("%s %q: not an absolute path", p.name, p.path)
		}
	}
	switch {
	case !filepath.IsLocal(c.CgroupRoot) || filepath.Clean(c.CgroupRoot) == ".":
		return fmt.Errorf("cgroup root %q: want a path relative to the cgroup mount, like \"shepherd\"", c.CgroupRoot)
	case c.LogMaxBytes < 4096:
		return fmt.Errorf("log size %d: want at least 4096 bytes", c.LogMaxBytes)
	case c.LogMaxFiles < 2:
		return fmt.Errorf("log files %d: want at least 2", c.LogMaxFiles)
	case c.StartTimeout <= 0:
		return errors.New("start timeout: want more than zero")
	}
	return nil
}
