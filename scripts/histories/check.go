package histories

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// checkTime bounds the search for an order; one that is not found in time
// counts as a failure.
const checkTime = 30 * time.Second

// check returns everything that is wrong. alone says that nothing but the
// clients has written: then every revision must have been seen by a watch.
// drawing, if not empty, is a file that shows a history without an order.
func (r *recorder) check(alone bool, drawing string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := slices.Clone(r.problems)
	events, more := r.union()
	found = append(found, more...)
	found = append(found, checkStamps(r.stamps)...)
	found = append(found, r.gaps(events)...)
	found = append(found, r.replay(events, alone)...)
	ops, more := resolve(r.ops, events)
	found = append(found, more...)
	if result := porcupine.CheckOperationsTimeout(model, ops, checkTime); result != porcupine.Ok {
		found = append(found, fmt.Sprintf("no order explains the %d operations: %s", len(ops), result))
		if drawing != "" {
			_, info := porcupine.CheckOperationsVerbose(model, ops, checkTime)
			if err := porcupine.VisualizePath(model, info, drawing); err != nil {
				found = append(found, err.Error())
			}
		}
	}
	return found
}

// checkStamps checks that who asked later was told of nothing older.
func checkStamps(stamps []stamp) (found []string) {
	byEnd := slices.Clone(stamps)
	slices.SortFunc(byEnd, func(a, b stamp) int { return cmp.Compare(a.end, b.end) })
	byCall := slices.Clone(stamps)
	slices.SortFunc(byCall, func(a, b stamp) int { return cmp.Compare(a.call, b.call) })
	var newest stamp
	next := 0
	for _, s := range byCall {
		for ; next < len(byEnd) && byEnd[next].end < s.call; next++ {
			if byEnd[next].revision > newest.revision {
				newest = byEnd[next]
			}
		}
		if s.least != 0 && (s.least < newest.revision || s.write && s.least == newest.revision) {
			found = append(found, fmt.Sprintf("%s was told %d after %s had been told %d", s.what, s.revision, newest.what, newest.revision))
		}
	}
	return found
}

// union is what all watches together have seen, by revision.
func (r *recorder) union() (events map[uint64]event, found []string) {
	events = make(map[uint64]event)
	for _, s := range r.segments {
		for _, e := range s.events {
			if other, ok := events[e.Revision]; ok && other != e {
				found = append(found, fmt.Sprintf("%s saw %+v, another watch %+v", s.what, e, other))
			}
			events[e.Revision] = e
		}
	}
	return events, found
}

// gaps finds what happened while a watch was looking, and was not shown to it.
func (r *recorder) gaps(events map[uint64]event) (found []string) {
	known := make(map[uint64]string)
	for revision := range events {
		known[revision] = "another watch saw it"
	}
	for _, s := range r.stamps {
		if s.write {
			known[s.revision] = s.what
		}
	}
	for _, l := range r.lists {
		for key, a := range l.objects {
			known[a.Version] = l.what + " showed " + key
		}
	}
	revisions := slices.Sorted(maps.Keys(known))
	for _, s := range r.segments {
		seen := make(map[uint64]bool, len(s.events))
		for _, e := range s.events {
			seen[e.Revision] = true
		}
		for _, revision := range revisions[sort.Search(len(revisions), func(i int) bool { return revisions[i] > s.from }):] {
			if revision <= s.to && !seen[revision] {
				found = append(found, fmt.Sprintf("%s looked from %d to %d and was not shown %d: %s", s.what, s.from, s.to, revision, known[revision]))
			}
		}
	}
	return found
}

// replay goes through all changes between the first list and the last one.
func (r *recorder) replay(events map[uint64]event, alone bool) (found []string) {
	lists := slices.Clone(r.lists)
	slices.SortStableFunc(lists, func(a, b list) int { return cmp.Compare(a.revision, b.revision) })
	if len(lists) < 2 {
		return []string{"there are no two lists to compare"}
	}
	first, last := lists[0].revision, lists[len(lists)-1].revision
	if hole := r.unwatched(first, last); hole != 0 {
		return []string{fmt.Sprintf("no watch looked at revision %d, so what happened then cannot be checked", hole)}
	}
	state, brought := maps.Clone(lists[0].objects), make(map[string]int)
	at := first
	for _, l := range lists {
		for ; at < l.revision; at++ {
			e, ok := events[at+1]
			switch {
			case ok:
				if tag := e.applyTo(state); tag != "" {
					brought[tag]++
				}
			case alone:
				found = append(found, fmt.Sprintf("nobody was shown revision %d", at+1))
			}
		}
		if !maps.Equal(l.objects, state) {
			found = append(found, fmt.Sprintf("%s showed %v at revision %d, where there was %v", l.what, l.objects, l.revision, state))
		}
	}
	for tag, times := range brought {
		if times > 1 {
			found = append(found, fmt.Sprintf("%s was written %d times", tag, times))
		}
		if outcome := r.tags[tag]; outcome != isOK && outcome != isUnknown {
			found = append(found, fmt.Sprintf("%s was answered with %q and is there", tag, outcome))
		}
	}
	for tag, outcome := range r.tags {
		if outcome == isOK && brought[tag] == 0 {
			found = append(found, fmt.Sprintf("%s was acknowledged and never came to be", tag))
		}
	}
	return found
}

// unwatched is the first revision after first, up to last, that no watch covers.
func (r *recorder) unwatched(first, last uint64) uint64 {
	segments := slices.Clone(r.segments)
	slices.SortFunc(segments, func(a, b *segment) int { return cmp.Compare(a.from, b.from) })
	covered := first
	for _, s := range segments {
		if s.from > covered {
			break
		}
		covered = max(covered, s.to)
	}
	if covered < last {
		return covered + 1
	}
	return 0
}
