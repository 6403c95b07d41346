package cluster

import (
	"errors"

	"github.com/shepherd-project/shepherd/api/wire"
)

var (
	// ErrNotLeader is returned when this server does not lead, or its state is
	// not complete yet. Nothing was changed.
	ErrNotLeader = errors.New("not the leader")
	// ErrAmbiguous is wire.ErrAmbiguous.
	ErrAmbiguous = wire.ErrAmbiguous
	// ErrNoLeader is returned when no leader answered in the time allowed. It
	// comes together with ErrAmbiguous if one was asked to write something.
	ErrNoLeader = errors.New("no leader answered")
	// ErrBusy is returned when too many commands wait already. Nothing was changed.
	ErrBusy = errors.New("too many proposals are waiting")
	// ErrStopped is returned once the node is shutting down.
	ErrStopped = errors.New("server is shutting down")
	// ErrNoQuorum is returned when a majority did not answer a question.
	ErrNoQuorum = errors.New("no answer from a majority")
	// ErrNameTaken is returned when another server has the name.
	ErrNameTaken = errors.New("server name is in use")
	// ErrNotProven is returned when another server has the name and may be gone.
	ErrNotProven = errors.New("server name may be in use")
	// ErrAddressTaken is returned when another server has the address.
	ErrAddressTaken = errors.New("server address is in use")
	// ErrUnknownServer is returned for a server that is not a member.
	ErrUnknownServer = errors.New("no such server")
	// ErrNotVoter is returned for a server that cannot lead.
	ErrNotVoter = errors.New("server is not a voter")
	// ErrLosesQuorum is returned for a removal after which too few voters would
	// be left that answer.
	ErrLosesQuorum = errors.New("the cluster would lose its quorum")
	// ErrRemoveLeader is returned for the removal of the leader itself.
	ErrRemoveLeader = errors.New("the server leads")
	// ErrRemoved is returned to a server that was removed from the cluster.
	ErrRemoved = errors.New("this server was removed from the cluster")
	// ErrLevel is returned for a command that not every server could apply. Nothing
	// was changed.
	ErrLevel = errors.New("not every server can apply this command yet")
	// ErrOldBuild is returned for a server whose build cannot apply the commands
	// of this cluster.
	ErrOldBuild = errors.New("the server's build is too old for this cluster")
	// ErrNotCaughtUp is returned for a server that cannot be given a vote yet.
	ErrNotCaughtUp = errors.New("server has not caught up")
	// ErrNotReady is returned by Ready while this server's state is behind.
	ErrNotReady = errors.New("state has not caught up with the leader")
	// ErrDiffers is returned by a server whose state is not that of the others.
	// It has stopped to serve for good.
	ErrDiffers = errors.New("this server's state differs from that of the other servers")
	// ErrForeignData is returned when the data directory belongs to another server.
	ErrForeignData = errors.New("data directory belongs to another server")
)
