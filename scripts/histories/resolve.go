package histories

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// resolve turns what clients were not told into what the watches have shown:
// a write whose value never came to be is dropped, one that did is given its
// revision. Without that every such write doubles the orders to be tried. A
// watch that lies does not make a wrong history right: reads, or other watches,
// contradict it. The watches must have covered the whole history.
func resolve(ops []porcupine.Operation, events map[uint64]event) (resolved []porcupine.Operation, found []string) {
	brought := make(map[string]event) // tag -> where it came up
	removed := make(map[string]event) // UID -> its deletion
	for _, revision := range slices.Sorted(maps.Keys(events)) {
		e := events[revision]
		for _, tag := range []string{e.Data.V, e.Data.P} {
			if _, known := brought[tag]; !known {
				brought[tag] = e
			}
		}
		if e.Type == "DELETED" {
			removed[e.UID] = e
		}
	}
	asked := make(map[string]moment) // key -> when the first unknown deletion was asked for
	for _, op := range ops {
		in, out := op.Input.(operation), op.Output.(answer)
		switch {
		case in.Verb == verbDelete && out.Is == isOK:
			delete(removed, out.UID)
		case out.Is != isUnknown:
		case in.Verb == verbDelete:
			if call, ok := asked[in.Key]; !ok || op.Call < call {
				asked[in.Key] = op.Call
			}
			continue
		default:
			e, ok := brought[in.tag()]
			if !ok {
				continue
			}
			op.Output = answer{Is: isOK, UID: e.UID, Version: e.Revision, Data: e.Data}
		}
		resolved = append(resolved, op)
	}
	// Deletions bear no value: each that nobody was told of was one of those
	// that were asked for.
	rest := slices.SortedFunc(maps.Values(removed), func(a, b event) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, e := range rest {
		call, ok := asked[e.Key]
		if !ok {
			found = append(found, fmt.Sprintf("%s was deleted at revision %d and nobody had asked for it", e.Key, e.Revision))
			continue
		}
		resolved = append(resolved, porcupine.Operation{ClientId: math.MaxInt32, Input: operation{Verb: verbDelete, Key: e.Key},
			Output: answer{Is: isOK, UID: e.UID, Version: e.Revision, Data: e.Data}, Call: call, Return: math.MaxInt64})
	}
	return resolved, found
}
