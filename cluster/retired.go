package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/fsm"
)

const retiredPrefix = "serverid/"

// retired is the data of the reservation of a removed server's ID. It is written
// before the server leaves the configuration and never deleted: the ID's votes
// may be forgotten, and its log may be that of another time, so it must never be
// a member again. While the server is still a member, it says that it is about
// to be removed; any later leader may finish that.
type retired struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Address string    `json:"address"`
	Time    time.Time `json:"time"`
	// Epoch is the restore epoch that began without the server; zero: an
	// administrator removed it. Such a server may enter anew by itself.
	Epoch uint64 `json:"epoch,omitempty"`
}

func retiredKey(id string) fsm.Key {
	return fsm.Key{Resource: fsm.ReservationResource, Name: retiredPrefix + id}
}

// isRetired reports whether the ID was removed, or is about to be.
func isRetired(view *fsm.View, id string) bool { return view.Get(retiredKey(id)) != nil }

// removedError tells a server that was removed, and its administrator, what to do.
func removedError(id string) error {
	return fmt.Errorf("%w: server ID %s must not come back, for others may have counted without its votes; "+
		"to use the machine again, stop it, empty its data directory and start it with --join and --token-file", ErrRemoved, id)
}

// lastRetired is the last server with that name or ID to have been removed.
func lastRetired(view *fsm.View, name string) (last retired, found bool, err error) {
	for o := range view.List(fsm.ReservationResource, "") {
		id, ok := strings.CutPrefix(o.Key.Name, retiredPrefix)
		if !ok || id != name && ServerName(id) != name {
			continue
		}
		var r retired
		if err := json.Unmarshal(o.Data, &r); err != nil {
			return r, false, fmt.Errorf("read the reservation of server ID %s: %w", id, err)
		}
		if !found || r.Time.After(last.Time) {
			last, found = r, true
		}
	}
	return last, found, nil
}

// retire reserves the ID of a server that is going to be removed. It reports
// whether it was not reserved before.
func (n *Node) retire(ctx context.Context, term uint64, s raft.Server) (fresh bool, err error) {
	key := retiredKey(string(s.ID))
	data, err := json.Marshal(retired{Version: 1, ID: string(s.ID), Address: string(s.Address), Time: n.Now()})
	if err != nil {
		return false, fmt.Errorf("reserve server ID %s: %w", s.ID, err)
	}
	res, err := n.Propose(ctx, fsm.Command{
		Term: term, Pre: []fsm.Precondition{{Key: key, Absent: true}},
		Ops: []fsm.Op{{Verb: fsm.Create, Key: key, UID: newUID(), Data: data}},
	})
	switch {
	case err != nil:
		return false, fmt.Errorf("reserve server ID %s: %w", s.ID, err)
	case res.Code == fsm.StaleTerm:
		return false, fmt.Errorf("reserve server ID %s: %w", s.ID, ErrNotLeader)
	case res.Code == fsm.Conflict: // an earlier attempt
		return false, nil
	case res.Code != fsm.OK:
		return false, fmt.Errorf("reserve server ID %s: %s %s", s.ID, res.Code, res.Detail)
	}
	return true, nil
}

// reprieve takes the reservation back: the server stays a member.
func (n *Node) reprieve(ctx context.Context, term uint64, id raft.ServerID) error {
	o := n.store.View().Get(retiredKey(string(id)))
	if o == nil {
		return nil
	}
	res, err := n.Propose(ctx, fsm.Command{
		Term: term, Pre: []fsm.Precondition{{Key: o.Key, UID: o.UID, Revision: o.Modified}},
		Ops: []fsm.Op{{Verb: fsm.Delete, Key: o.Key, UID: o.UID}},
	})
	if err == nil && res.Code != fsm.OK {
		err = fmt.Errorf("%s %s", res.Code, res.Detail)
	}
	if err != nil {
		return fmt.Errorf("keep server %s a member: %w", id, err)
	}
	n.kickPromotion()
	return nil
}
