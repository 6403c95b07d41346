package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

const (
	// collectionWorkers is how many deletions of one request are on their way
	// at once; the log takes them in groups.
	collectionWorkers = 32
	// maxCollectionAnswer bounds the list that is answered, in bytes of its
	// objects; beyond it the answer is a Status.
	maxCollectionAnswer = 4 << 20
)

// collection is one DELETE on a collection in the leader's half: a command for
// each object, each under the request's ID with the object's UID, so that a
// resend finds out for each whether it was carried out.
type collection struct {
	s    *Server
	req  *wire.Request
	base *write
	opts *metav1.DeleteOptions
	list listOptions
	page page

	mu        sync.Mutex
	objects   []*fsm.Object // in the page's order; nil for one that was gone already
	committed bool          // something went through the log
	notLeader bool
	failed    error // the first
}

// runCollection deletes what the selectors match. Objects that are gone by then
// do not matter; the first other failure is the answer, and the other objects
// are deleted all the same, as upstream has it.
func (s *Server) runCollection(ctx context.Context, w *write) *wire.Response {
	c := &collection{s: s, req: w.req, base: w}
	done, err := c.choose()
	if err != nil {
		return s.errorResponse(w.req, err)
	}
	if c.notLeader {
		return &wire.Response{NotLeader: true}
	}
	work := make(chan int)
	var workers sync.WaitGroup
	for range min(collectionWorkers, len(c.page.items)) {
		workers.Go(func() {
			for i := range work {
				c.remove(ctx, i)
			}
		})
	}
	for i := range c.page.items {
		work <- i
	}
	close(work)
	workers.Wait()
	switch {
	case c.notLeader:
		return &wire.Response{NotLeader: true}
	case c.failed != nil:
		resp := s.errorResponse(w.req, c.failed)
		resp.Committed = c.committed
		return resp
	}
	return c.answer(done)
}

// choose finds the objects to delete, and those that an earlier attempt of the
// same request has deleted. An object made after the first of those deletions
// is none of the request's: nobody's new object is lost to a resend.
func (c *collection) choose() (done []*fsm.Object, err error) {
	w := c.base
	if term, leading := c.s.cfg.Consensus.Leadership(); !leading || term != c.req.Term {
		c.notLeader = true
		return nil, nil
	}
	v := c.s.cfg.Store.View()
	if v.Expired(w.id) {
		return nil, errOutcomeForgotten(w)
	}
	if err := c.s.authorize(v, w.caller, w.info); err != nil {
		return nil, err
	}
	if c.opts, err = w.deleteOptions(); err != nil {
		return nil, err
	}
	w.options.dryRun = w.options.dryRun || isDryRun(c.opts.DryRun)
	if c.list, err = parseListOptions(w.info); err != nil {
		return nil, err
	}
	if c.list.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
		return nil, apierrors.NewBadRequest("a collection is deleted as it is now: resourceVersionMatch=Exact is not supported")
	}
	var after fsm.Key
	if c.list.Continue != "" {
		token, err := parseContinue(c.list.Continue)
		if err != nil {
			return nil, err
		}
		after = w.info.Kind.Key(token.Namespace, token.Name)
	}
	first := uint64(0)
	for outcome := range v.Outcomes(w.id) {
		if first == 0 || outcome.Revision < first {
			first = outcome.Revision
		}
		done = append(done, outcome.Objects[0])
	}
	if first == 0 {
		c.page, err = c.s.listPage(v, c.list, after)
	} else {
		c.page, err = c.rest(v, after, first, done)
	}
	c.objects = make([]*fsm.Object, len(c.page.items))
	return done, err
}

// rest is the page of a resend: what the first attempt would have gone on to.
func (c *collection) rest(v *fsm.View, after fsm.Key, first uint64, done []*fsm.Object) (page, error) {
	finished := make(map[string]bool, len(done))
	for _, o := range done {
		finished[o.UID] = true
	}
	all := c.list
	all.Limit = 0
	p, err := c.s.listPage(v, all, after)
	if err != nil {
		return p, err
	}
	kept := p.items[:0]
	for _, o := range p.items {
		if c.list.Limit > 0 && int64(len(kept)+len(done)) >= c.list.Limit {
			break
		}
		if o.Created < first && !finished[o.UID] {
			kept = append(kept, o)
		}
	}
	p.items = kept
	return p, nil
}

// remove deletes one object of the page, with as many plans as it takes.
func (c *collection) remove(ctx context.Context, i int) {
	o, committed, err := c.removeOne(ctx, c.page.items[i])
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects[i] = o
	c.committed = c.committed || committed
	switch {
	case err == errNotLeading:
		c.notLeader = true
	case err != nil && c.failed == nil:
		c.failed = err
	}
}

var errNotLeading = fmt.Errorf("api: this replica does not lead")

func (c *collection) removeOne(ctx context.Context, target *fsm.Object) (after *fsm.Object, committed bool, err error) {
	w := *c.base
	w.info.Namespace, w.info.Name = target.Key.Namespace, target.Key.Name
	w.id = w.id.WithSub("delete/" + target.UID)
	for range c.s.cfg.Write.MaxPlans {
		term, leading := c.s.cfg.Consensus.Leadership()
		if !leading || term != c.req.Term {
			return nil, false, errNotLeading
		}
		v := c.s.cfg.Store.View()
		if live := v.Get(target.Key); live == nil || live.UID != target.UID {
			return nil, false, nil
		}
		p, err := w.remove(v, c.opts)
		if err != nil {
			return nil, false, err
		}
		if len(p.ops) == 0 || w.options.dryRun {
			return w.preview(p).objects[0], false, nil
		}
		result, err := c.s.cfg.Consensus.Propose(ctx, fsm.Command{ID: w.id, Term: term, Pre: p.pre, Ops: p.ops})
		switch {
		case err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)):
			return nil, true, apierrors.NewTimeoutError("not all objects of the collection could be deleted in time", 0)
		case err != nil || result.Code == fsm.StaleTerm:
			return nil, false, errNotLeading
		case result.Code == fsm.OK:
			return result.Objects[0], true, nil
		case result.Code == fsm.Expired:
			// The request is so large that it has pushed its own first outcomes
			// out of the table. The UID and the version in the command see to it
			// that it is carried out once in any case.
			w.id = fsm.RequestID{}
		case result.Code != fsm.Conflict:
			return nil, false, apierrors.NewInternalError(fmt.Errorf("the command was refused as %s: %s %s", result.Code, result.FailedKey, result.Detail))
		}
	}
	return nil, false, apierrors.NewConflict(w.info.groupResource(), w.info.Name, fmt.Errorf("it was changed by others %d times in a row", c.s.cfg.Write.MaxPlans))
}

// answer is the list of the objects as the deletion left them.
func (c *collection) answer(done []*fsm.Object) *wire.Response {
	p := page{items: done, meta: c.page.meta}
	for _, o := range c.objects {
		if o != nil {
			p.items = append(p.items, o)
		}
	}
	p.meta.ResourceVersion = resource.FormatRevision(c.s.cfg.Store.View().Revision())
	size := 0
	for _, o := range p.items {
		size += len(o.Data)
	}
	media, ok := negotiate(c.base.header("Accept"), shapesObject)
	var body []byte
	var err error
	switch {
	case !ok:
		err = errNotAcceptable(acceptedTypes)
	case size > maxCollectionAnswer || media.form == formYAML || media.shape != shapeObject:
		status := &metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{Group: c.base.info.GVR.Group, Kind: c.base.info.GVR.Resource}}
		status.SetGroupVersionKind(statusGVK)
		body, err = encodeObject(media.form, statusGVK, status)
	default:
		var buf bytes.Buffer
		gvk := c.base.info.Kind.GVK.GroupVersion().WithKind(c.base.info.Kind.GVK.Kind + "List")
		if media.form == formProtobuf {
			err = c.s.listProtobuf(&buf, gvk, p)
		} else {
			err = c.s.listJSON(&buf, gvk, p)
		}
		body = buf.Bytes()
	}
	if err != nil {
		return c.s.errorResponse(c.req, err)
	}
	header := http.Header{"Content-Type": {media.form.contentType()}}
	return &wire.Response{Status: http.StatusOK, Header: header, Body: body, Committed: c.committed}
}
