package runtime

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// What lies where:
//
//	RUN/pods/UID/                    pod.json (the intent), shim.json, sock, shim.log, shm, hosts, ...
//	RUN/pods/UID/containers/NAME/N/  container.json (the intent), state.json, exit.json
//	DATA/containers/UID/NAME/N/      upper, work, rootfs: gone when the attempt has ended
//	DATA/logs/NS_POD_UID/NAME/N.log  the current log file; N.log.1, ... the rotated ones
//	CGROUP/pod-UID/_shim, CGROUP/pod-UID/NAME.N

const (
	podFile       = "pod.json"
	containerFile = "container.json"
	shimLog       = "shim.log"
	groupPrefix   = "pod-"
	shimGroup     = "_shim"
)

func (r *Runtime) podsDir() string            { return filepath.Join(r.cfg.RunDir, "pods") }
func (r *Runtime) podDir(uid string) string   { return filepath.Join(r.podsDir(), uid) }
func (r *Runtime) layersDir() string          { return filepath.Join(r.cfg.DataDir, "containers") }
func (r *Runtime) layerDir(uid string) string { return filepath.Join(r.layersDir(), uid) }
func (r *Runtime) logsDir() string            { return filepath.Join(r.cfg.DataDir, "logs") }

func (r *Runtime) attemptDir(uid, name string, attempt int) string {
	return filepath.Join(r.podDir(uid), "containers", name, strconv.Itoa(attempt))
}

func (r *Runtime) attemptLayer(uid, name string, attempt int) string {
	return filepath.Join(r.layerDir(uid), name, strconv.Itoa(attempt))
}

func (r *Runtime) logDir(c *PodConfig) string {
	return filepath.Join(r.logsDir(), c.Namespace+"_"+c.Name+"_"+c.UID)
}

func logName(attempt int) string { return strconv.Itoa(attempt) + ".log" }

func groupName(container string, attempt int) string {
	return container + "." + strconv.Itoa(attempt)
}

// checkName refuses what must not become a part of a path. Names and UIDs of
// Kubernetes pass.
func checkName(what, s string) error {
	ok := s != "" && len(s) <= 253 && !strings.HasPrefix(s, ".") && !strings.HasPrefix(s, "-")
	for _, c := range s {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.')
	}
	if !ok {
		return fmt.Errorf("%w: %s %q", ErrInvalid, what, s)
	}
	return nil
}
