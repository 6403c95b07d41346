package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// Raising the command level (see fsm.Level), on the leader:
//
//	what can you apply? ── link ──> every member's build says it
//	                                   │ more than the state's level: the least of them
//	promise it          ── link ──> every member writes down that no older build
//	                                   │ may run on its data any more
//	                                   v
//	a command raises the level; whoever proposes after it may use that
//
// No member is added meanwhile. The promise comes second, so that a server which
// was upgraded can go back for as long as one of the others was not; and before
// the command, so that nobody goes back after it. A server that was left out of
// this (it is not a member) is refused when it asks to be one.

// keyPromised is where a server keeps the level that it promised.
var keyPromised = []byte("ShepherdCommandLevel")

// keepLevel raises the level for as long as this server leads, if it can.
func (n *Node) keepLevel() {
	n.whileLeading(n.ensureLevel, func(err error) {
		n.logger.Warn("the command level is not raised yet; it is tried again", "reason", err)
	})
}

// ensureLevel returns nil once the level is what this build can apply.
func (n *Node) ensureLevel() error {
	ctx, cancel := context.WithTimeout(n.ctx, n.timing.Propose)
	defer cancel()
	if err := n.lockMembers(ctx); err != nil {
		return err
	}
	defer n.unlockMembers()
	term, leading := n.Leadership()
	if !leading {
		return ErrNotLeader
	}
	view, want := n.store.View(), n.store.MaxLevel()
	if view.Level() >= want {
		return nil
	}
	members := n.servers()
	least, behind, err := n.leastLevel(ctx, members)
	if err != nil {
		return err
	}
	if least > view.Level() {
		if err := n.raiseLevel(ctx, term, view, members, least); err != nil {
			return err
		}
	}
	if least < want {
		return fmt.Errorf("this server's build can apply level %d, but not every other server can: %s; upgrade them, or start them", want, strings.Join(behind, "; "))
	}
	return nil
}

// leastLevel asks the members for what all of them can apply, and who holds the
// others up. It is 0 if one does not answer.
func (n *Node) leastLevel(ctx context.Context, members []raft.Server) (least uint8, behind []string, err error) {
	want := uint64(n.store.MaxLevel())
	var mu sync.Mutex
	levels := make(map[raft.ServerID]uint64) // 0: no answer
	behind, err = n.everyOther(ctx, members, func(ctx context.Context, s raft.Server) error {
		level, err := n.askLevel(ctx, s)
		mu.Lock()
		levels[s.ID] = level
		mu.Unlock()
		if err == nil && level < want {
			err = fmt.Errorf("its build can apply level %d", level)
		}
		return err
	})
	mu.Lock()
	defer mu.Unlock()
	lowest := want
	for _, s := range n.others(members) {
		lowest = min(lowest, levels[s.ID])
	}
	return uint8(lowest), behind, err
}

// askLevel is what a server's build can apply, 0 with an error.
func (n *Node) askLevel(ctx context.Context, s raft.Server) (uint64, error) {
	st, err := n.askStatus(ctx, s)
	switch {
	case err != nil:
		return 0, err
	case st.ID != string(s.ID):
		return 0, fmt.Errorf("%s answers at its address", st.ID)
	}
	return max(st.MaxLevel, 1), nil
}

// raiseLevel has all members promise, and raises the level.
func (n *Node) raiseLevel(ctx context.Context, term uint64, view *fsm.View, members []raft.Server, level uint8) error {
	if err := n.promise(uint64(level)); err != nil {
		return err
	}
	msg := wire.EncodeLevelPromise(&wire.LevelPromise{Level: uint64(level)})
	missing, err := n.everyOther(ctx, members, func(ctx context.Context, s raft.Server) error {
		st, err := call(ctx, n, s.Address, wire.LinkLevel, msg, wire.DecodeServerStatus)
		if err == nil && st.ID != string(s.ID) {
			err = fmt.Errorf("%s answers at its address", st.ID)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case len(missing) > 0:
		return fmt.Errorf("not every server has promised to apply level %d: %s", level, strings.Join(missing, "; "))
	case !slices.Equal(members, n.servers()):
		return errors.New("the members changed meanwhile")
	}
	cmd := fsm.Command{Term: term}
	op := fsm.Op{Verb: fsm.Create, Key: fsm.LevelKey, UID: newUID(), Data: fsm.LevelData(level)}
	if o := view.Get(fsm.LevelKey); o != nil {
		op.Verb, op.UID = fsm.Update, o.UID
		cmd.Pre = []fsm.Precondition{{Key: fsm.LevelKey, UID: o.UID, Revision: o.Modified}}
	}
	cmd.Ops = []fsm.Op{op}
	res, err := n.Propose(ctx, cmd)
	switch {
	case err != nil:
		return err
	case res.Code == fsm.StaleTerm:
		return ErrNotLeader
	case res.Code != fsm.OK:
		return fmt.Errorf("the command was refused: %s %s", res.FailedKey, res.Detail)
	}
	n.logger.Info("the command level was raised: no server can go back to an older build", "level", level, "before", view.Level())
	return nil
}

// promise writes down that no build that cannot apply the level must run on this
// server's data.
func (n *Node) promise(level uint64) error {
	if most := n.store.MaxLevel(); level > uint64(most) {
		return fmt.Errorf("this build can apply level %d at most, not %d", most, level)
	}
	n.promised.Lock()
	defer n.promised.Unlock()
	have, err := n.promisedLevel()
	if err != nil || have >= level {
		return err
	}
	if err := n.files.stable.SetUint64(keyPromised, level); err != nil {
		return fmt.Errorf("write down the promised command level: %w", err)
	}
	return nil
}

// promisedLevel is 0 if nothing was promised.
func (n *Node) promisedLevel() (uint64, error) {
	level, err := n.files.stable.GetUint64(keyPromised)
	if err != nil && err.Error() != "not found" {
		return 0, fmt.Errorf("read the promised command level: %w", err)
	}
	return level, nil
}

// linkLevel takes a promise.
func (n *Node) linkLevel(w http.ResponseWriter, r *http.Request) {
	msg, ok := readLink(w, r, wire.MaxSmall, wire.DecodeLevelPromise)
	if !ok {
		return
	}
	if err := n.promise(msg.Level); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	n.writeLink(w, wire.EncodeServerStatus(n.serverStatus()))
}

// checkBuild refuses to start on data that this build must not run on.
func (n *Node) checkBuild() error {
	level, err := n.promisedLevel()
	if err == nil && level > uint64(n.store.MaxLevel()) {
		err = fsm.TooOld("this server's data is", level, n.store.MaxLevel())
	}
	return err
}

// checkJoiner refuses a server that cannot apply what the members can. Called
// with the members locked: the level does not rise before it is one of them.
func (n *Node) checkJoiner(ctx context.Context, s raft.Server) error {
	need := uint64(n.store.View().Level())
	if need == 1 {
		return nil // all builds can
	}
	id := string(s.ID)
	n.admitting.Store(&id)
	defer n.admitting.Store(nil)
	ctx, cancel := context.WithTimeout(ctx, n.timing.Transport)
	defer cancel()
	level, err := n.askLevel(ctx, s)
	switch {
	case err != nil:
		return fmt.Errorf("ask for its command level: %w", err)
	case level < need:
		return fmt.Errorf("%w: it can apply command level %d at most, and the cluster is at level %d; run a build that can apply level %d there", ErrOldBuild, level, need, need)
	}
	return nil
}

// checkCommand refuses a command that some server may not be able to apply.
func (n *Node) checkCommand(cmd *fsm.Command) error {
	if cmd.Level > 1 {
		if level := n.store.View().Level(); cmd.Level > level {
			return fmt.Errorf("%w: it is of level %d, and the cluster at level %d", ErrLevel, cmd.Level, level)
		}
	}
	return nil
}

// levelNote says what holds the level up, "" if nothing does.
func levelNote(level uint64, members []wire.Member) string {
	most := level
	for _, m := range members {
		most = max(most, m.MaxLevel)
	}
	if most == level {
		return ""
	}
	var behind []string
	for _, m := range members {
		switch {
		case m.MaxLevel == 0:
			behind = append(behind, m.Name+" does not answer")
		case m.MaxLevel < most:
			behind = append(behind, fmt.Sprintf("the build of %s can apply level %d", m.Name, m.MaxLevel))
		}
	}
	if len(behind) == 0 {
		return fmt.Sprintf("all servers can apply level %d; the leader raises it within seconds", most)
	}
	return fmt.Sprintf("level %d needs every server: %s", most, strings.Join(behind, ", "))
}
