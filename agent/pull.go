package agent

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/shepherd-project/shepherd/agent/image"
)

const (
	pullBase = time.Second
	// pullLimit keeps the wait short enough that pods start within seconds of
	// a registry's return; the jitter and the bound on parallel pulls protect it.
	pullLimit = 10 * time.Second
)

// puller gets images in the background, a few at a time.
type puller struct {
	images *image.Store
	slots  chan struct{}
	logger hclog.Logger
	ctx    context.Context
	wg     sync.WaitGroup
	local  sync.Mutex // one look at the import directory at a time
}

func newPuller(ctx context.Context, images *image.Store, parallel int, logger hclog.Logger) *puller {
	return &puller{images: images, slots: make(chan struct{}, parallel), logger: logger, ctx: ctx}
}

// pull is one image on its way. Its result may be read once done is closed.
type pull struct {
	done  chan struct{}
	began time.Time
	image *image.Image
	err   error
}

// start gets an image; done is called when it has arrived or failed.
func (p *puller) start(ref string, policy image.PullPolicy, done func()) *pull {
	t := &pull{done: make(chan struct{}), began: time.Now()}
	p.wg.Go(func() {
		defer done()
		defer close(t.done)
		t.err = context.Canceled // should what follows panic
		guard(p.logger, "image pull", func() { t.image, t.err = p.get(ref, policy) })
	})
	return t
}

func (p *puller) get(ref string, policy image.PullPolicy) (*image.Image, error) {
	if policy != image.PullAlways {
		p.importLocal()
	}
	select {
	case p.slots <- struct{}{}:
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	}
	defer func() { <-p.slots }()
	return p.images.Ensure(p.ctx, ref, policy)
}

// importLocal takes in the archives that an administrator has put in place.
func (p *puller) importLocal() {
	p.local.Lock()
	defer p.local.Unlock()
	refs, err := p.images.ImportDir(p.ctx)
	if err != nil && p.ctx.Err() == nil {
		p.logger.Error("image archive refused", "error", err)
	}
	if len(refs) > 0 {
		p.logger.Info("images imported", "images", refs)
	}
}
