package cluster

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// epochStart and epochStep make a restore epoch out of a time, see NextEpoch.
var epochStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const epochStep = 10 * time.Second

// NextEpoch is the restore epoch that follows another at a time. It comes from
// the clock, so that two restores of one backup begin two epochs, the later
// one the higher, and never goes back where the clock does. Revisions have
// room for such epochs until 2068.
func NextEpoch(current uint64, now time.Time) uint64 {
	next := current + 1
	if since := now.Sub(epochStart); since > 0 {
		next = max(next, uint64(since/epochStep))
	}
	return next
}

// Superseded reports whether the server with this ID was left behind when the
// cluster began a new restore epoch.
func Superseded(view *fsm.View, id string) bool {
	o := view.Get(retiredKey(id))
	if o == nil {
		return false
	}
	var r retired
	return json.Unmarshal(o.Data, &r) == nil && r.Epoch != 0
}

// beginEpoch moves the store, to which no Raft applies, into a new restore
// epoch, leaves servers behind and forgets objects. The state's index moves on by one.
func beginEpoch(store *fsm.Store, epoch uint64, index, term uint64, leave []wire.Server, forget ...fsm.Key) error {
	if err := store.Rebase(epoch); err != nil {
		return err
	}
	cmd := fsm.Command{Term: term, Time: store.View().Time().UnixNano()}
	if store.View().Time().IsZero() {
		cmd.Time = 0
	}
	for _, s := range leave {
		key := retiredKey(s.ID)
		data, err := json.Marshal(retired{Version: 1, ID: s.ID, Address: s.Address, Time: store.View().Time(), Epoch: epoch})
		if err != nil {
			return err
		}
		op := fsm.Op{Verb: fsm.Create, Key: key, UID: newUID(), Data: data}
		if o := store.View().Get(key); o != nil {
			op.Verb, op.UID = fsm.Update, o.UID
		}
		cmd.Ops = append(cmd.Ops, op)
	}
	for _, key := range forget {
		if o := store.View().Get(key); o != nil {
			cmd.Ops = append(cmd.Ops, fsm.Op{Verb: fsm.Delete, Key: key, UID: o.UID})
		}
	}
	if len(cmd.Ops) == 0 {
		return nil
	}
	switch res := store.Apply(&raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: fsm.EncodeEntry([]fsm.Command{cmd})}).(type) {
	case []fsm.Result:
		if len(res) == 1 && res[0].Code == fsm.OK {
			return nil
		}
		return fmt.Errorf("leave servers behind: %+v", res)
	default:
		return fmt.Errorf("leave servers behind: %v", res)
	}
}
