package controllers

import (
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// object is what every typed kind is.
type object interface {
	runtime.Object
	metav1.Object
}

// plan is what a planner decided. Chains are independent of one another and
// may be proposed at the same time; the commands of one chain go in order, and
// the first one that is refused ends its chain.
type plan struct {
	chains [][]fsm.Command
	// after, if positive, is when to plan again at the latest.
	after time.Duration
	// problems are objects that could not be planned for; the rest was.
	problems []error
}

// add appends a chain of the changes that are not empty. One that could not be
// built is a problem, and ends the chain before it.
func (p *plan) add(changes ...*change) {
	var chain []fsm.Command
	for _, c := range changes {
		if c.err != nil {
			p.problem(c.err)
			break
		}
		if len(c.ops) > 0 {
			chain = append(chain, fsm.Command{Pre: c.pre, Ops: c.ops}) // the runner fills the term in
		}
	}
	if len(chain) > 0 {
		p.chains = append(p.chains, chain)
	}
}

// problem keeps an error about one object, to be logged.
func (p *plan) problem(err error) { p.problems = append(p.problems, err) }

// again asks for another pass after d at the latest.
func (p *plan) again(d time.Duration) {
	d = max(d, time.Millisecond)
	if p.after == 0 || d < p.after {
		p.after = d
	}
}

// commands lists what is planned, chain by chain.
func (p *plan) commands() []fsm.Command {
	var all []fsm.Command
	for _, chain := range p.chains {
		all = append(all, chain...)
	}
	return all
}

// change collects the operations and preconditions of one command. Errors are
// kept until the change is added to a plan.
type change struct {
	pre []fsm.Precondition
	ops []fsm.Op
	err error
}

func (c *change) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// same asks that the object is still in the version that was read.
func (c *change) same(obj object) *change { return c.require(obj, false) }

// live asks that the object is still in the version that was read, and not
// being deleted.
func (c *change) live(obj object) *change { return c.require(obj, true) }

func (c *change) require(obj object, live bool) *change {
	revision, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
	if err != nil {
		c.fail(fmt.Errorf("revision of %s: %w", obj.GetName(), err))
		return c
	}
	c.pre = append(c.pre, fsm.Precondition{Key: keyOf(obj), UID: string(obj.GetUID()), Revision: revision, Live: live})
	return c
}

// exists asks that the object was not replaced and is not being deleted,
// whatever else has changed about it.
func (c *change) exists(obj object) *change {
	c.pre = append(c.pre, fsm.Precondition{Key: keyOf(obj), UID: string(obj.GetUID()), Live: true})
	return c
}

// absent asks that there is no such object.
func (c *change) absent(key fsm.Key) *change {
	c.pre = append(c.pre, fsm.Precondition{Key: key, Absent: true})
	return c
}

// namespace asks that the namespace exists and is not terminating.
func (c *change) namespace(name string) *change {
	c.pre = append(c.pre, fsm.Precondition{Key: fsm.Key{Resource: resNamespaces, Name: name}, Live: true})
	return c
}

// create adds the creation of an object.
func (c *change) create(obj object) *change {
	op, err := resource.CreateOp(obj)
	if err != nil {
		c.fail(err)
	}
	return c.op(op)
}

// update adds the replacement of old, in the version that was read, by obj.
func (c *change) update(old, obj object) *change {
	op, err := resource.UpdateOp(obj)
	if err != nil {
		c.fail(err)
	}
	return c.same(old).op(op)
}

// remove adds the removal of an object, in the version that was read.
func (c *change) remove(obj object) *change {
	return c.same(obj).op(fsm.Op{Verb: fsm.Delete, Key: keyOf(obj), UID: string(obj.GetUID())})
}

func (c *change) op(op fsm.Op) *change {
	c.ops = append(c.ops, op)
	return c
}

// delete adds the deletion of an object as a client's delete would do it:
// gracefully for a pod that runs, by its deletion timestamp for an object with
// finalizers, at once for others. It adds nothing for an object that is
// already on its way out.
func (c *change) delete(obj object, now time.Time) *change {
	grace := int64(0)
	if k := resource.ForObject(obj); k != nil && k.GracePeriod != nil {
		grace = k.GracePeriod(obj, nil)
	}
	if grace == 0 && len(obj.GetFinalizers()) == 0 {
		return c.remove(obj)
	}
	copied := obj.DeepCopyObject().(object)
	if obj.GetDeletionTimestamp() != nil || !resource.SetDeleted(copied, now, grace) {
		return c
	}
	return c.update(obj, copied)
}

// keyOf returns the key of an object of a known kind.
func keyOf(obj object) fsm.Key {
	k := resource.ForObject(obj)
	if k == nil {
		return fsm.Key{} // refused by the store as malformed; CreateOp and UpdateOp report it first
	}
	return k.Key(obj.GetNamespace(), obj.GetName())
}
