package runtime

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The filter is a search tree over ranges of syscall numbers, not a chain of
// comparisons: the kernel takes it ten times faster, and containers start so
// much sooner. It allows the machine's native system calls only.

// Offsets in struct seccomp_data; arguments are 64-bit, low half first.
const (
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16
)

var (
	retAllow  = bpf.RetConstant{Val: uint32(seccomp.ActionAllow)}
	retEPERM  = bpf.RetConstant{Val: uint32(seccomp.ActionErrno) | uint32(unix.EPERM)}
	retENOSYS = bpf.RetConstant{Val: uint32(seccomp.ActionErrno) | uint32(unix.ENOSYS)}
)

const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

// filterCache holds the assembled filters by the capabilities that matter.
type filterCache struct {
	mu      sync.Mutex
	filters map[uint64][]byte
}

// filter assembles the default filter for a set of capabilities, as an array
// of struct sock_filter. The caller must not change it.
func (c *filterCache) filter(capabilities uint64) ([]byte, error) {
	var relevant uint64
	for name := range capabilitySyscalls {
		relevant |= mustCapabilities(name)
	}
	key := capabilities & relevant
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.filters[key]; f != nil {
		return f, nil
	}
	f, err := assembleFilter(key)
	if err != nil {
		return nil, fmt.Errorf("assemble seccomp filter: %w", err)
	}
	if c.filters == nil {
		c.filters = map[uint64][]byte{}
	}
	c.filters[key] = f
	return f, nil
}

// span is a run of syscall numbers from first to the next span's, with the
// code that decides on them.
type span struct {
	first uint32
	code  []bpf.Instruction
}

func assembleFilter(capabilities uint64) ([]byte, error) {
	a, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: dataArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(a.ID), SkipTrue: 1},
		retENOSYS,
		bpf.LoadAbsolute{Off: dataNumber, Size: 4},
	}
	program = append(program, searchTree(spans(decisions(a, capabilities)))...)
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, i := range raw {
		if err := binary.Write(&out, binary.NativeEndian, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// decisions maps each syscall number of the architecture to its code.
func decisions(a *arch.Info, capabilities uint64) map[uint32][]bpf.Instruction {
	out := map[uint32][]bpf.Instruction{}
	set := func(names string, code ...bpf.Instruction) {
		for name := range strings.FieldsSeq(names) {
			if nr, ok := a.SyscallNames[name]; ok {
				out[uint32(nr|a.SeccompMask)] = code
			}
		}
	}
	for nr := range a.SyscallNumbers {
		out[uint32(nr|a.SeccompMask)] = []bpf.Instruction{retEPERM}
	}
	set(allowedSyscalls, retAllow)
	// No new namespaces. clone3 hides its flags in memory: ENOSYS makes every
	// libc fall back to clone.
	set("clone", argument(0), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: newNamespaces, SkipFalse: 1}, retEPERM, retAllow)
	set("clone3", retENOSYS)
	set("socket", oneOf(argument(0), retEPERM, retAllow, unix.AF_VSOCK, unix.AF_ALG)...)
	set("personality", oneOf(argument(0), retAllow, retEPERM, 0, 0x8, 0x20000, 0x20008, 0xffffffff)...)
	for name, calls := range capabilitySyscalls {
		if capabilities&mustCapabilities(name) != 0 {
			set(calls, retAllow)
		}
	}
	return out
}

func argument(n uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: dataArgs + 8*n, Size: 4} }

// oneOf returns yes when the loaded word is one of the values, else no.
func oneOf(load bpf.Instruction, yes, no bpf.Instruction, values ...uint32) []bpf.Instruction {
	out := []bpf.Instruction{load}
	for i, v := range values {
		out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(values) - i)})
	}
	return append(out, no, yes)
}

// spans merges neighbours with the same code. Numbers inside the table that
// nobody assigned, and those above it, are ENOSYS: newer than this list.
func spans(m map[uint32][]bpf.Instruction) []span {
	numbers := make([]uint32, 0, len(m))
	for n := range m {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	unknown := []bpf.Instruction{retENOSYS}
	out := []span{{0, unknown}}
	add := func(first uint32, code []bpf.Instruction) {
		last := &out[len(out)-1]
		switch {
		case slices.Equal(last.code, code):
		case last.first == first:
			last.code = code
			if n := len(out); n > 1 && slices.Equal(out[n-2].code, code) {
				out = out[:n-1]
			}
		default:
			out = append(out, span{first, code})
		}
	}
	for _, n := range numbers {
		add(n, m[n])
		add(n+1, unknown) // replaced when the next number follows at once
	}
	return out
}

// searchTree decides on the loaded syscall number by halving the spans.
func searchTree(s []span) []bpf.Instruction {
	if len(s) == 1 {
		return s[0].code
	}
	mid := len(s) / 2
	low, high := searchTree(s[:mid]), searchTree(s[mid:])
	var out []bpf.Instruction
	if len(low) <= 255 {
		out = append(out, bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: s[mid].first, SkipTrue: uint8(len(low))})
	} else {
		out = append(out,
			bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: s[mid].first, SkipFalse: 1},
			bpf.Jump{Skip: uint32(len(low))})
	}
	return append(append(out, low...), high...)
}
