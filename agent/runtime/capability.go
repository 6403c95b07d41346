package runtime

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// capabilityNames in the order of their numbers.
var capabilityNames = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID",
	"SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
	"SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
	"SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
	"MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
	"CHECKPOINT_RESTORE",
}

// defaultCapabilities are those that container engines grant by convention.
var defaultCapabilities = mustCapabilities("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW",
	"SETGID", "SETUID", "SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE")

func capability(name string) (uint, bool) {
	name = strings.TrimPrefix(strings.ToUpper(name), "CAP_")
	for i, n := range capabilityNames {
		if n == name {
			return uint(i), true
		}
	}
	return 0, false
}

func mustCapabilities(names ...string) (mask uint64) {
	for _, n := range names {
		c, ok := capability(n)
		if !ok {
			panic("unknown capability " + n)
		}
		mask |= 1 << c
	}
	return mask
}

// capabilities resolves the lists of a container to a set of those that this
// machine has. One that is named but withheld by the machine is an error.
func (c *ContainerConfig) capabilities(available uint64) (uint64, error) {
	if c.Privileged {
		return available, nil
	}
	mask := defaultCapabilities & available
	// ALL first, so that "drop ALL, add NET_BIND_SERVICE" means what it says.
	for _, n := range c.CapAdd {
		if strings.EqualFold(strings.TrimPrefix(n, "CAP_"), "ALL") {
			mask = available
		}
	}
	for _, n := range c.CapDrop {
		if strings.EqualFold(strings.TrimPrefix(n, "CAP_"), "ALL") {
			mask = 0
			continue
		}
		cp, ok := capability(n)
		if !ok {
			return 0, fmt.Errorf("%w: unknown capability %q", ErrInvalid, n)
		}
		mask &^= 1 << cp
	}
	for _, n := range c.CapAdd {
		if strings.EqualFold(strings.TrimPrefix(n, "CAP_"), "ALL") {
			continue
		}
		cp, ok := capability(n)
		if !ok {
			return 0, fmt.Errorf("%w: unknown capability %q", ErrInvalid, n)
		}
		if available&(1<<cp) == 0 {
			return 0, fmt.Errorf("%w: this machine withholds capability %s", ErrInvalid, capabilityNames[cp])
		}
		mask |= 1 << cp
	}
	return mask, nil
}

// ownCapabilities are those that this process may hand on.
func ownCapabilities() (uint64, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return 0, fmt.Errorf("read capabilities: %w", err)
	}
	return uint64(data[1].Permitted)<<32 | uint64(data[0].Permitted), nil
}
