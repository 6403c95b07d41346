package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/cluster/seal"
	"github.com/shepherd-project/shepherd/fsm"
)

// errNotSealed is wrapped when an entry was not proposed because the key to
// seal it with is missing.
var errNotSealed = errors.New("entries cannot be sealed")

// sealingKey holds which data key is in use: its ID alone, never the key.
var sealingKey = fsm.Key{Resource: fsm.ReservationResource, Name: "datakey/active"}

// sealingRecord is the data of that object.
type sealingRecord struct {
	Version int    `json:"version"`
	Key     uint32 `json:"key"`
}

// keychain is the node's use of the data keys: which one seals, and where to
// get one that is missing. Safe for concurrent use.
type keychain struct {
	n      *Node
	ring   *seal.Ring
	logger hclog.Logger
	sealer seal.Sealer
	raft   atomic.Pointer[raft.Raft] // nil until Raft has started
	seen   atomic.Pointer[seenRecord]
	turn   chan struct{} // holds one token: rotations take turns
}

// seenRecord spares decoding the same record for every entry.
type seenRecord struct {
	object *fsm.Object
	key    uint32
}

func newKeychain(n *Node) *keychain {
	return &keychain{n: n, ring: n.cfg.Keys, logger: n.logger.Named("seal"), turn: make(chan struct{}, 1)}
}

// recorded is the key that the state names, 0 if it names none.
func (k *keychain) recorded(view *fsm.View) (uint32, error) {
	o := view.Get(sealingKey)
	if o == nil {
		return 0, nil
	}
	if seen := k.seen.Load(); seen != nil && seen.object == o {
		return seen.key, nil
	}
	var r sealingRecord
	if err := json.Unmarshal(o.Data, &r); err != nil {
		return 0, fmt.Errorf("read which data key is in use: %w", err)
	}
	if r.Version != 1 || r.Key == 0 {
		return 0, fmt.Errorf("read which data key is in use: format %d, key %d; this build knows format 1", r.Version, r.Key)
	}
	k.seen.Store(&seenRecord{object: o, key: r.Key})
	return r.Key, nil
}

// current is the key to seal with, the zero Key if nothing is sealed yet: in a
// cluster of an earlier version until all of its servers can open what is sealed.
func (k *keychain) current() (seal.Key, error) {
	id, err := k.recorded(k.n.store.View())
	if err != nil {
		return seal.Key{}, err
	}
	if id == 0 {
		if id = k.ring.Keys().Initial; id == 0 {
			return seal.Key{}, nil
		}
	}
	if key, ok := k.ring.Get(id); ok {
		return key, nil
	}
	if err := k.ask(id); err != nil {
		return seal.Key{}, err
	}
	key, _ := k.ring.Get(id)
	return key, nil
}

// seal seals an entry. A nil keychain leaves it plain.
func (k *keychain) seal(entry []byte) ([]byte, error) {
	if k == nil {
		return entry, nil
	}
	key, err := k.current()
	if err == nil && key.ID != 0 {
		entry, err = k.sealer.Seal(key, entry)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotSealed, err)
	}
	return entry, nil
}

// refusedEntry is the future of an entry that Raft was not given.
type refusedEntry struct{ err error }

func (r refusedEntry) Error() error  { return r.err }
func (r refusedEntry) Response() any { return nil }
func (r refusedEntry) Index() uint64 { return 0 }

// await gets a key that is missing here from the other servers, and asks again
// until Timing.Forward has passed or the node stops.
func (k *keychain) await(id uint32) error {
	k.logger.Warn("a data key is missing; the other servers are asked for it", "key", id)
	ctx, cancel := context.WithTimeout(k.n.ctx, k.n.timing.Forward)
	defer cancel()
	for {
		err := k.ask(id)
		if err == nil {
			k.logger.Info("the data key was received", "key", id)
			return nil
		}
		if k.n.pauseUnder(ctx, nil, k.n.timing.Round); ctx.Err() != nil {
			return err
		}
	}
}

// ask asks the other servers once.
func (k *keychain) ask(id uint32) error {
	ctx, cancel := context.WithTimeout(k.n.ctx, k.n.timing.Transport)
	defer cancel()
	servers, err := k.peers()
	if err != nil {
		return err
	}
	failed := []error{fmt.Errorf("%w: key %d is neither in the data directory nor known to another server that answers", seal.ErrNoKey, id)}
	for _, s := range k.n.others(servers) {
		if err := k.exchange(ctx, s, seal.Keys{}); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", ServerName(string(s.ID)), err))
			continue
		}
		if _, ok := k.ring.Get(id); ok {
			return nil
		}
	}
	return fmt.Errorf("%w; restore %s from a copy, or start the servers that have the key", errors.Join(failed...), keysFile)
}

// peers are the servers of the configuration. Before Raft has started, it is
// that of the latest snapshot.
func (k *keychain) peers() ([]raft.Server, error) {
	if r := k.raft.Load(); r != nil {
		return r.GetConfiguration().Configuration().Servers, nil
	}
	metas, err := k.n.files.snapshots.List()
	if err != nil {
		return nil, fmt.Errorf("look for the servers in the snapshots: %w", err)
	}
	if len(metas) == 0 {
		return nil, nil
	}
	return metas[0].Configuration.Servers, nil
}

// exchange hands keys to a server and takes all of its own. Without an error
// they are stored durably there, and its own here.
func (k *keychain) exchange(ctx context.Context, s raft.Server, keys seal.Keys) error {
	msg := wire.EncodeDataKeys(&wire.DataKeys{ID: k.n.cfg.ID, Keys: keys.Encode()})
	reply, err := call(ctx, k.n, s.Address, wire.LinkKeys, msg, wire.DecodeDataKeys)
	if err != nil {
		return err
	}
	if reply.ID != string(s.ID) {
		return fmt.Errorf("%s answers at its address", reply.ID)
	}
	theirs, err := seal.Decode(reply.Keys)
	if err != nil {
		return err
	}
	return k.ring.Add(theirs)
}

// linkKeys is the other half of exchange.
func (n *Node) linkKeys(w http.ResponseWriter, r *http.Request) {
	msg, ok := readLink(w, r, wire.MaxSmall, wire.DecodeDataKeys)
	if !ok {
		return
	}
	if n.keys == nil {
		http.Error(w, "this server keeps no data keys", http.StatusNotImplemented)
		return
	}
	keys, err := seal.Decode(msg.Keys)
	if err == nil {
		err = n.keys.ring.Add(keys)
	}
	if err != nil {
		n.keys.logger.Warn("data keys were refused", "server", msg.ID, "error", err)
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	n.writeLink(w, wire.EncodeDataKeys(&wire.DataKeys{ID: n.cfg.ID, Keys: n.keys.ring.Keys().Encode()}))
}
