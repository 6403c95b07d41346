package controllers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// Deps is what controllers need of the server that they run in. The functions
// must be safe for concurrent use.
type Deps struct {
	Store   *fsm.Store
	Decoder *resource.Decoder
	// Propose puts a command through the log and returns what applying it
	// gave. It proposes on this server only. Its error means that the outcome
	// is not known or that this server does not lead.
	Propose func(context.Context, fsm.Command) (fsm.Result, error)
	// Ages returns how long ago each node was last heard of by a majority of
	// the servers. On an error no node is judged.
	Ages func(context.Context) (map[string]time.Duration, error)
	// Servers returns the HOST:PORT addresses of the API servers, for the
	// endpoints of service default/kubernetes. It may be nil.
	Servers func() []string
	// Now is the cluster time.
	Now func() time.Time
	// Rand seeds the random source of each loop. Only the Manager draws from
	// it, on the goroutine of its Run.
	Rand *rand.Rand

	Config Config
	Logger hclog.Logger
	// Registerer takes the metrics. It may be nil.
	Registerer prometheus.Registerer
	// Fatal ends the process; it is called when a loop does not stop. Nil
	// means exit code 2.
	Fatal func(error)
}

func (d *Deps) validate() error {
	switch {
	case d.Store == nil:
		return fmt.Errorf("controllers: no store")
	case d.Decoder == nil:
		return fmt.Errorf("controllers: no decoder")
	case d.Propose == nil || d.Ages == nil || d.Now == nil:
		return fmt.Errorf("controllers: Propose, Ages and Now must be set")
	case d.Rand == nil:
		return fmt.Errorf("controllers: no random source")
	}
	return d.Config.Validate()
}

// Leadership is the consensus module's view of who leads, as a level.
type Leadership interface {
	// Leadership returns the term, and whether this server leads in it and
	// has applied everything that was committed before.
	Leadership() (term uint64, leading bool)
	// LeadershipChanged is closed at the next change of either. Take it
	// before reading the level.
	LeadershipChanged() <-chan struct{}
}
