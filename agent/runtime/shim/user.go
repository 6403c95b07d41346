package shim

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
)

// identity is who a process runs as.
type identity struct {
	uid, gid uint32
	groups   []uint32
	home     string
}

// maxAccounts bounds how much of the image's account files is read, bytes.
const maxAccounts = 1 << 20

// lookupUser resolves an image's user, "user[:group]" by name or number, with
// the passwd and group files of the image. extra are more groups.
func lookupUser(read func(path string, max int64) ([]byte, error), spec string, extra []uint32) (identity, error) {
	id := identity{home: "/"}
	user, group, hasGroup := strings.Cut(spec, ":")
	if user == "" {
		user = "0"
	}
	passwd, err := accounts(read, "/etc/passwd")
	if err != nil {
		return id, err
	}
	groups, err := accounts(read, "/etc/group")
	if err != nil {
		return id, err
	}
	number, numeric := parseID(user)
	name, found := "", false
	for _, e := range passwd { // name:x:uid:gid:gecos:home:shell
		if len(e) < 6 {
			continue
		}
		uid, ok := parseID(e[2])
		gid, ok2 := parseID(e[3])
		if !ok || !ok2 || numeric && uid != number || !numeric && e[0] != user {
			continue
		}
		name, found = e[0], true
		id.uid, id.gid = uid, gid
		if e[5] != "" {
			id.home = e[5]
		}
		break
	}
	if !found {
		if !numeric {
			return id, fmt.Errorf("no user %q in the image", user)
		}
		id.uid = number
	}
	if hasGroup && group != "" {
		gid, ok := parseID(group)
		if !ok {
			i := slices.IndexFunc(groups, func(e []string) bool { return len(e) > 2 && e[0] == group })
			if i < 0 {
				return id, fmt.Errorf("no group %q in the image", group)
			}
			if gid, ok = parseID(groups[i][2]); !ok {
				return id, fmt.Errorf("group %q of the image has no valid number", group)
			}
		}
		id.gid = gid
	} else if found {
		for _, e := range groups { // name:x:gid:member,member
			if len(e) < 4 || !slices.Contains(strings.Split(e[3], ","), name) {
				continue
			}
			if gid, ok := parseID(e[2]); ok {
				id.groups = append(id.groups, gid)
			}
		}
	}
	id.groups = append(id.groups, extra...)
	slices.Sort(id.groups)
	id.groups = slices.Compact(id.groups)
	return id, nil
}

func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n < math.MaxUint32 // 2^32-1 means "unchanged" to the kernel
}

// accounts reads a colon-separated file; a missing one is empty.
func accounts(read func(string, int64) ([]byte, error), path string) ([][]string, error) {
	b, err := read(path, maxAccounts)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	var out [][]string
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		out = append(out, strings.Split(strings.TrimSpace(s.Text()), ":"))
	}
	return out, nil
}
