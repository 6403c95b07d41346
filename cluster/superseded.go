package cluster

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

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

// serverReservation is taken for good by a Raft ID that must not come back:
// its server has votes and a log that this cluster's history has left behind.
func serverReservation(id string) fsm.Key {
	return fsm.Key{Resource: fsm.ReservationResource, Name: "serverid/" + id}
}

// goneServer is the data of such a reservation.
type goneServer struct {
	Version int    `json:"version"`
	Reason  string `json:"reason"`          // superseded
	Epoch   uint64 `json:"epoch,omitempty"` // the restore epoch that left it behind
}

// Superseded reports whether the server with this ID was left behind when the
// cluster began a new restore epoch.
func Superseded(view *fsm.View, id string) bool {
	o := view.Get(serverReservation(id))
	if o == nil {
		return false
	}
	var g goneServer
	return json.Unmarshal(o.Data, &g) == nil && g.Reason == "superseded"
}

// beginEpoch moves the store, to which no Raft applies, into a new restore
// epoch, leaves servers behind and forgets objects. The state's index moves on by one.
func beginEpoch(store *fsm.Store, epoch uint64, index, term uint64, leave []string, forget ...fsm.Key) error {
	if err := store.Rebase(epoch); err != nil {
		return err
	}
	cmd := fsm.Command{Term: term, Time: store.View().Time().UnixNano()}
	if store.View().Time().IsZero() {
		cmd.Time = 0
	}
	data, err := json.Marshal(goneServer{Version: 1, Reason: "superseded", Epoch: epoch})
	if err != nil {
		return err
	}
	for _, id := range leave {
		key := serverReservation(id)
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
