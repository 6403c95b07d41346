package fsm

// apply applies one command to the state being built and appends its events.
// Either all of its operations happen, or nothing changes.
func (s *Store) apply(term uint64, c *Command, events []Event) (Result, []Event) {
	if c.Term != term {
		return s.refuse(StaleTerm, Key{}, "planned in another term of leadership"), events
	}
	if !c.ID.IsZero() {
		if e, ok := s.outcomes.get(c.ID); ok {
			return Result{Code: OK, Duplicate: true, Objects: e.outcome.Objects, Revision: e.outcome.Revision}, events
		}
		if s.next.Expired(c.ID) {
			return s.refuse(Expired, Key{}, "request is older than the table of outcomes"), events
		}
	}
	if key, detail := malformed(c); detail != "" {
		return s.refuse(Malformed, key, detail), events
	}
	for i := range c.Pre {
		if detail := c.Pre[i].check(s.get(c.Pre[i].Key)); detail != "" {
			return s.refuse(Conflict, c.Pre[i].Key, detail), events
		}
	}
	objects := make([]*Object, len(c.Ops)) // before the command, and then after it
	for i := range c.Ops {
		objects[i] = s.get(c.Ops[i].Key)
		if detail := c.Ops[i].check(objects[i]); detail != "" {
			return s.refuse(Conflict, c.Ops[i].Key, detail), events
		}
	}

	s.next.time = max(s.next.time, c.Time)
	for i := range c.Ops {
		objects[i], events = s.change(&c.Ops[i], objects[i], events)
	}
	if !c.ID.IsZero() {
		e := &outcomeEntry{id: c.ID, outcome: Outcome{Revision: s.next.revision, Objects: objects}}
		s.next.horizon = s.outcomes.record(e, s.next.horizon, s.cfg.MaxOutcomes, s.cfg.MaxOutcomeBytes)
	}
	return Result{Code: OK, Objects: objects, Revision: s.next.revision}, events
}

func (s *Store) refuse(code Code, key Key, detail string) Result {
	return Result{Code: code, FailedKey: key, Detail: detail, Revision: s.next.revision}
}

func (s *Store) get(k Key) *Object {
	s.probe.Key = k
	o, _ := s.objects.Get(&s.probe)
	return o
}

// change carries out an operation that check has let through on prev.
func (s *Store) change(op *Op, prev *Object, events []Event) (*Object, []Event) {
	if op.Verb == Update && prev.Deleting == op.Deleting && string(prev.Data) == string(op.Data) {
		return prev, events
	}
	s.next.revision++
	o := &Object{Key: op.Key, UID: op.UID, Created: s.next.revision, Modified: s.next.revision,
		Deleting: op.Deleting, Data: op.Data}
	if prev != nil {
		s.next.hash = s.next.hash.minus(prev.hash())
		o.Key, o.UID, o.Created = prev.Key, prev.UID, prev.Created // shares the strings
	}
	if op.Verb == Delete {
		o.Deleting, o.Data = prev.Deleting, prev.Data
		s.objects.Delete(prev)
		return o, append(events, Event{Revision: o.Modified, Prev: prev, Object: o, Deleted: true})
	}
	s.next.hash = s.next.hash.plus(o.hash())
	s.objects.Set(o)
	return o, append(events, Event{Revision: o.Modified, Prev: prev, Object: o})
}

// check returns what is wrong, or "".
func (p *Precondition) check(o *Object) string {
	switch {
	case p.Absent && o != nil:
		return "exists already"
	case p.Absent:
		return ""
	case o == nil:
		return "does not exist"
	case p.UID != "" && o.UID != p.UID:
		return "was replaced by another object of the same name"
	case p.Revision != 0 && o.Modified != p.Revision:
		return "was changed"
	case p.Live && o.Deleting:
		return "is being deleted"
	}
	return ""
}

// check returns what is wrong, or "".
func (op *Op) check(o *Object) string {
	if op.Verb == Create {
		return (&Precondition{Absent: true}).check(o)
	}
	if o == nil {
		return "does not exist"
	}
	if op.Key == LevelKey && op.Verb == Update && parseLevel(op.Data) < parseLevel(o.Data) {
		return "never falls"
	}
	if o.UID != op.UID {
		return "was replaced by another object of the same name"
	}
	return ""
}

// malformed returns what makes the command one that can never be applied.
func malformed(c *Command) (Key, string) {
	if len(c.Ops) == 0 {
		return Key{}, "has no operation"
	}
	for i := range c.Pre {
		if !c.Pre[i].Key.valid() {
			return c.Pre[i].Key, "precondition on an invalid key"
		}
	}
	var seen map[Key]struct{}
	if len(c.Ops) > 1 {
		seen = make(map[Key]struct{}, len(c.Ops))
	}
	for i := range c.Ops {
		op := &c.Ops[i]
		if op.Verb < Create || op.Verb > Delete {
			return op.Key, "has an unknown " + op.Verb.String()
		}
		if !op.Key.valid() {
			return op.Key, "operation on an invalid key"
		}
		if op.Key == LevelKey {
			if detail := op.malformedLevel(); detail != "" {
				return op.Key, detail
			}
		}
		if seen != nil {
			if _, twice := seen[op.Key]; twice {
				return op.Key, "is changed twice by one command"
			}
			seen[op.Key] = struct{}{}
		}
	}
	return Key{}, ""
}
