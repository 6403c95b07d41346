package agent

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// machine is what the agent knows of the machine it runs on.
type machine struct {
	hostname string
	ip       netip.Addr
	memory   int64 // bytes
	info     corev1.NodeSystemInfo
	capacity corev1.ResourceList
}

// readMachine looks at the machine. peer is an address HOST:PORT whose route
// decides which of the machine's addresses is its own, unless ip is valid.
func readMachine(cfg *Config, peers []string) (*machine, error) {
	m := &machine{ip: cfg.NodeIP}
	var err error
	if m.hostname, err = os.Hostname(); err != nil {
		return nil, fmt.Errorf("host name: %w", err)
	}
	if !m.ip.IsValid() {
		if m.ip, err = sourceAddress(peers); err != nil {
			return nil, err
		}
	}
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return nil, fmt.Errorf("memory size: %w", err)
	}
	m.memory = int64(si.Totalram) * int64(si.Unit)
	m.info, err = systemInfo(cfg.Version)
	if err != nil {
		return nil, err
	}
	m.capacity = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(m.memory, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(int64(cfg.MaxPods), resource.DecimalSI),
	}
	if disk, err := diskSize(cfg.DataDir); err == nil {
		m.capacity[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(disk, resource.BinarySI)
	}
	return m, nil
}

// sourceAddress is the address that packets to one of the peers leave with.
// Connecting a UDP socket sends nothing.
func sourceAddress(peers []string) (netip.Addr, error) {
	var errs []error
	for _, peer := range peers {
		c, err := net.Dial("udp4", peer)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		addr := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
		if err := c.Close(); err != nil {
			return netip.Addr{}, err
		}
		return addr, nil
	}
	return netip.Addr{}, fmt.Errorf("no address of this machine leads to a server: %w", errors.Join(errs...))
}

func systemInfo(version string) (corev1.NodeSystemInfo, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return corev1.NodeSystemInfo{}, fmt.Errorf("kernel version: %w", err)
	}
	boot, err := readBootID()
	if err != nil {
		return corev1.NodeSystemInfo{}, err
	}
	return corev1.NodeSystemInfo{
		MachineID:               firstLine("/etc/machine-id"),
		SystemUUID:              firstLine("/sys/class/dmi/id/product_uuid"),
		BootID:                  boot,
		KernelVersion:           unix.ByteSliceToString(uts.Release[:]),
		OSImage:                 osName(),
		ContainerRuntimeVersion: "shepherd://" + strings.TrimPrefix(version, "v"),
		KubeletVersion:          version,
		OperatingSystem:         runtime.GOOS,
		Architecture:            runtime.GOARCH,
	}, nil
}

// firstLine returns the first line of a file that need not exist.
func firstLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(line)
}

func osName() string {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "Linux"
	}
	s := bufio.NewScanner(bytes.NewReader(data))
	for s.Scan() {
		if v, ok := strings.CutPrefix(s.Text(), "PRETTY_NAME="); ok {
			if name, err := strconv.Unquote(v); err == nil {
				return name
			}
			return v
		}
	}
	return "Linux"
}

func diskSize(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, err
	}
	return int64(st.Blocks) * st.Bsize, nil
}
