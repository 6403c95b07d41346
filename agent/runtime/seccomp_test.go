package runtime

import (
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// decide runs a filter as the kernel would.
func decide(t *testing.T, code []bpf.Instruction, number uint32, arg0 uint32) uint32 {
	t.Helper()
	words := map[uint32]uint32{dataNumber: number, dataArgs: arg0}
	acc, pc := number, 0
	for steps := 0; steps < 1000; steps++ {
		switch i := code[pc].(type) {
		case bpf.LoadAbsolute:
			acc = words[i.Off]
		case bpf.Jump:
			pc += int(i.Skip)
		case bpf.RetConstant:
			return i.Val
		case bpf.JumpIf:
			yes := map[bpf.JumpTest]bool{bpf.JumpEqual: acc == i.Val, bpf.JumpGreaterOrEqual: acc >= i.Val, bpf.JumpBitsSet: acc&i.Val != 0}[i.Cond]
			if yes {
				pc += int(i.SkipTrue)
			} else {
				pc += int(i.SkipFalse)
			}
		default:
			t.Fatalf("instruction %T", i)
		}
		pc++
	}
	t.Fatal("no decision")
	return 0
}

func TestSeccompDecisions(t *testing.T) {
	a, err := arch.GetInfo("")
	if err != nil {
		t.Fatal(err)
	}
	m := decisions(a, 0)
	tree := searchTree(spans(m))
	// The tree decides each number as the table does.
	for n := range uint32(2000) {
		want := retENOSYS.Val
		if code, ok := m[n]; ok {
			want = decide(t, code, n, 0)
		}
		if got := decide(t, tree, n, 0); got != want {
			t.Errorf("syscall %d: %x, want %x", n, got, want)
		}
	}
	nr := func(name string) uint32 { return uint32(a.SyscallNames[name]) }
	for _, test := range []struct {
		name string
		arg  uint32
		want bpf.RetConstant
	}{
		{"read", 0, retAllow}, {"execve", 0, retAllow}, {"mount", 0, retEPERM}, {"bpf", 0, retEPERM}, {"kexec_load", 0, retEPERM},
		{"clone", uint32(unix.SIGCHLD), retAllow}, {"clone", unix.CLONE_NEWUSER, retEPERM}, {"clone3", 0, retENOSYS},
		{"socket", unix.AF_INET, retAllow}, {"socket", unix.AF_VSOCK, retEPERM}, {"personality", 0xffffffff, retAllow}, {"personality", 0x40000, retEPERM},
		{"io_uring_setup", 0, retEPERM}, {"add_key", 0, retEPERM}, {"chroot", 0, retEPERM},
	} {
		if got := decide(t, tree, nr(test.name), test.arg); got != test.want.Val {
			t.Errorf("%s(%#x): %x, want %x", test.name, test.arg, got, test.want.Val)
		}
	}
	for _, n := range []uint32{0x40000000, 0x7fffffff, 0xffffffff} { // x32 and nonsense
		if got := decide(t, tree, n, 0); got != retENOSYS.Val {
			t.Errorf("syscall %#x: %x", n, got)
		}
	}
	admin := searchTree(spans(decisions(a, mustCapabilities("SYS_ADMIN"))))
	for _, name := range []string{"mount", "clone3", "setns"} {
		if got := decide(t, admin, nr(name), 0); got != retAllow.Val {
			t.Errorf("%s with SYS_ADMIN: %x", name, got)
		}
	}
	t.Logf("%d instructions", len(tree))
}

func TestConfigValidate(t *testing.T) {
	good := DefaultConfig()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*Config){
		"relative": func(c *Config) { c.RunDir = "run" }, "cgroup absolute": func(c *Config) { c.CgroupRoot = "/x" },
		"cgroup up": func(c *Config) { c.CgroupRoot = "../x" }, "cgroup root": func(c *Config) { c.CgroupRoot = "." },
		"log size": func(c *Config) { c.LogMaxBytes = 1 }, "log files": func(c *Config) { c.LogMaxFiles = 1 },
		"timeout": func(c *Config) { c.StartTimeout = 0 },
	} {
		c := DefaultConfig()
		edit(&c)
		if c.Validate() == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
