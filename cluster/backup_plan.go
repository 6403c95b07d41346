package cluster

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// backupStamp is how a scheduled backup's name tells its time, in UTC.
const backupStamp = "20060102T150405Z"

// backupName matches the names that scheduled backups get, and those of files
// that were begun: the cluster's ID, the time, the revision.
var backupName = regexp.MustCompile(`^(\.?)shepherd-([a-z0-9-]+)-(\d{8}T\d{6}Z)-(\d{1,20})\.backup(\..+)?$`)

// savedBackup is a scheduled backup, as its file's name tells.
type savedBackup struct {
	name     string
	cluster  string
	made     time.Time
	revision uint64
	begun    bool // not finished: it is being written, or its writer has ended
}

func nameBackup(h BackupHeader) string {
	return fmt.Sprintf("shepherd-%s-%s-%d.backup", h.ClusterID, h.Created.UTC().Format(backupStamp), h.Revision)
}

// parseBackupName returns false for a file that no schedule has made.
func parseBackupName(name string) (savedBackup, bool) {
	m := backupName.FindStringSubmatch(name)
	if m == nil || (m[1] == "") != (m[5] == "") {
		return savedBackup{}, false
	}
	made, err := time.Parse(backupStamp, m[3])
	if err != nil {
		return savedBackup{}, false
	}
	revision, err := strconv.ParseUint(m[4], 10, 64)
	if err != nil {
		return savedBackup{}, false
	}
	return savedBackup{name: name, cluster: m[2], made: made, revision: revision, begun: m[1] != ""}, true
}

// latestFirst returns the backups that were not made after now, the latest
// first: one from the future, by a clock that was wrong, must not keep others
// from being made.
func latestFirst(now time.Time, saved []savedBackup) []savedBackup {
	saved = slices.DeleteFunc(slices.Clone(saved), func(b savedBackup) bool { return b.made.After(now) })
	slices.SortFunc(saved, func(a, b savedBackup) int { return b.made.Compare(a.made) })
	return saved
}

// abandonedAfter is the age at which a backup that was begun and not finished is
// nobody's any more.
const abandonedAfter = 24 * time.Hour

// backupsToPrune names what may be removed once the backup latest is good: all
// but it and the newest of the other good ones, keep in all, and what was begun
// long before and never finished. The revision says which is newer, as no clock
// moves it back.
func backupsToPrune(latest savedBackup, keep int, good, begun []savedBackup) (names []string) {
	good = slices.DeleteFunc(slices.Clone(good), func(b savedBackup) bool { return b.name == latest.name })
	slices.SortFunc(good, func(a, b savedBackup) int {
		return cmp.Or(cmp.Compare(b.revision, a.revision), b.made.Compare(a.made))
	})
	for _, b := range good[min(keep-1, len(good)):] {
		names = append(names, b.name)
	}
	for _, b := range begun {
		if latest.made.Sub(b.made) > abandonedAfter {
			names = append(names, b.name)
		}
	}
	return names
}
