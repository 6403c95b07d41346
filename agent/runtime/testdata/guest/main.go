// Command guest is what the runtime's tests run inside containers.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		os.Exit(2)
	}
	arg := func(i int) string { return os.Args[i] }
	switch os.Args[1] {
	case "exit":
		code, _ := strconv.Atoi(arg(2))
		os.Exit(code)
	case "echo":
		fmt.Println(strings.Join(os.Args[2:], " "))
	case "env":
		for _, e := range os.Environ() {
			fmt.Println(e)
		}
	case "cat":
		for _, p := range os.Args[2:] {
			b, err := os.ReadFile(p)
			if err != nil {
				fmt.Println(err)
				continue
			}
			os.Stdout.Write(b)
		}
	case "ls":
		for _, p := range os.Args[2:] {
			names, err := filepath.Glob(p + "/*")
			fmt.Println(names, err)
		}
	case "write":
		if err := os.WriteFile(arg(2), []byte(arg(3)), 0o644); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case "id":
		groups, _ := os.Getgroups()
		wd, _ := os.Getwd()
		host, _ := os.Hostname()
		fmt.Printf("uid=%d gid=%d groups=%v cwd=%s host=%s pid=%d\n", os.Getuid(), os.Getgid(), groups, wd, host, os.Getpid())
	case "ns":
		for _, n := range []string{"pid", "mnt", "net", "ipc", "uts", "cgroup"} {
			l, err := os.Readlink("/proc/self/ns/" + n)
			fmt.Println(n, l, err)
		}
	case "try":
		try()
	case "oom":
		var hold [][]byte
		for range 1 << 12 {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			hold = append(hold, b)
		}
		fmt.Println(len(hold))
	case "forks":
		n := 0
		for range 200 {
			if exec.Command("/guest", "sleep").Start() != nil {
				break
			}
			n++
		}
		fmt.Println("started", n)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		time.Sleep(time.Hour)
	case "polite":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready")
		<-c
		fmt.Println("bye")
	case "sleep":
		fmt.Println("ready")
		time.Sleep(time.Hour)
	case "copy":
		n, _ := io.Copy(os.Stdout, os.Stdin)
		fmt.Fprintln(os.Stderr, "copied", n)
	case "lines":
		n, _ := strconv.Atoi(arg(2))
		for i := range n {
			fmt.Printf("line %06d %s\n", i, strings.Repeat("x", 80))
		}
	case "daemon": // leaves a child behind that holds the streams
		c := exec.Command("/guest", "sleep")
		c.Stdout = os.Stdout
		if err := c.Start(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case "serve": // writes for ever; a restart shows
		f, err := os.OpenFile("/out/count", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		for what := "start"; ; what = "." {
			if _, err := f.WriteString(what); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// try does what a container must not manage to do and prints how it went.
func try() {
	say := func(what string, err error) { fmt.Printf("%s: %v\n", what, err) }
	say("mount", syscall.Mount("tmpfs", "/tmp", "tmpfs", 0, ""))
	say("unshare", syscall.Unshare(syscall.CLONE_NEWUSER))
	say("reboot", syscall.Reboot(syscall.LINUX_REBOOT_CMD_CAD_OFF))
	say("mknod", syscall.Mknod("/disk", syscall.S_IFBLK|0o600, 254<<8))
	_, err := os.Open("/disk")
	say("open-disk", err)
	say("mknod-dev", syscall.Mknod("/dev/disk", syscall.S_IFBLK|0o600, 254<<8))
	_, err = os.Open("/dev/disk")
	say("open-dev-disk", err)
	say("chmod-null", os.Chmod("/dev/null", 0))
	say("write-null", os.WriteFile("/dev/null", []byte("x"), 0))
	say("sysctl", os.WriteFile("/proc/sys/kernel/hostname", []byte("x"), 0))
	say("sysfs", os.WriteFile("/sys/kernel/mm/ksm/run", []byte("0"), 0))
	say("cgroup", os.Mkdir("/sys/fs/cgroup/memory/x", 0o755))
	b, err := os.ReadFile("/proc/interrupts")
	fmt.Println("masked file:", len(b), err)
	names, err := os.ReadDir("/sys/firmware")
	fmt.Println("masked directory:", len(names), err)
	say("shm", os.WriteFile("/dev/shm/x", []byte("x"), 0o644))
	_, _, e := syscall.Syscall(syscall.SYS_SOCKET, 40, syscall.SOCK_STREAM, 0)
	say("vsock", e)
	_, _, e = syscall.Syscall(999, 0, 0, 0)
	say("unknown", e)
	_, err = os.Stat("/proc/1/root/guest")
	say("own-root", err)
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "Cap") || strings.HasPrefix(line, "Seccomp:") || strings.HasPrefix(line, "NoNewPrivs") {
			fmt.Print(line)
		}
	}
}
