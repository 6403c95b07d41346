package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/api/wire"
	"github.com/shepherd-project/shepherd/fsm"
)

// plan is what a write has decided against one view: the operations, the
// request's own object first, and everything that the decision depended on.
// A plan without operations changes nothing; its answer is the object as it is.
type plan struct {
	pre []fsm.Precondition
	ops []fsm.Op
	// live is the object as the view has it; nil for a create.
	live *fsm.Object
}

// outcome is what a write did: the objects after the operations of its plan,
// and whether its own object was removed from the store.
type outcome struct {
	objects []*fsm.Object
	gone    bool
	// created: the write made its object.
	created bool
}

// action is one way to write. An action serves one request and is used by one
// goroutine; decide may be called again after the state has changed.
type action interface {
	// decide makes a plan out of the request and the view alone.
	decide(w *write, v *fsm.View) (*plan, error)
	// answer is the status and the body for an outcome. It must not depend on
	// anything that decide has found out: a recorded outcome is answered by an
	// action that has decided nothing.
	answer(w *write, o outcome) (int, runtime.Object, error)
}

// write is one write request in the leader's half. It is used by one goroutine.
type write struct {
	s        *Server
	req      *wire.Request
	id       fsm.RequestID
	info     requestInfo
	caller   Identity
	options  writeOptions
	action   action
	warnings []string
	// uid is that of the object to be created, drawn once per request.
	uid types.UID
}

// newWrite takes a forwarded request apart. Its error is the client's.
func (s *Server) newWrite(id fsm.RequestID, req *wire.Request) (*write, error) {
	query, err := url.ParseQuery(req.RawQuery)
	if err != nil {
		return nil, apierrors.NewBadRequest("malformed query: " + err.Error())
	}
	info, refused := parsePath(req.Method, req.Path, query)
	if refused != nil {
		return nil, refused
	}
	if !info.isResource() {
		return nil, errPathNotFound(info.Verb, info.groupResource(), info.Name)
	}
	w := &write{
		s: s, req: req, id: id, info: info,
		caller: Identity{User: req.User, Groups: req.Groups, Node: req.Node},
		uid:    resource.NewUID(&s.writes.random),
	}
	if w.options, err = parseWriteOptions(query, w.header("User-Agent")); err != nil {
		return nil, err
	}
	if w.action = actionFor(info); w.action == nil {
		return nil, errMethodNotAllowed(info.groupResource(), info.Verb)
	}
	return w, nil
}

// actionFor returns the action of a route, or nil if there is none.
func actionFor(info requestInfo) action {
	switch info.Subresource + " " + info.Verb {
	case " create":
		return &createAction{}
	case " update", "status update":
		return &updateAction{}
	case " patch", "status patch":
		return &patchAction{}
	case " delete", " deletecollection":
		return &deleteAction{}
	case "scale update", "scale patch":
		return &scaleAction{}
	case "binding create":
		return &bindingAction{}
	case "eviction create":
		return &evictionAction{}
	case "finalize update":
		return &finalizeAction{}
	}
	return nil
}

// plan authorises the request and decides it, both in the same view.
func (w *write) plan(v *fsm.View) (*plan, error) {
	if err := w.s.authorize(v, w.caller, w.info); err != nil {
		return nil, err
	}
	w.warnings = nil
	return w.action.decide(w, v)
}

// preview is the outcome of a plan that is not carried out: the live object
// for one without operations, what would be stored for a dry run.
func (w *write) preview(p *plan) outcome {
	o := outcome{created: p.live == nil}
	if len(p.ops) == 0 {
		o.objects = []*fsm.Object{p.live}
		return o
	}
	op := p.ops[0]
	object := &fsm.Object{Key: op.Key, UID: op.UID, Deleting: op.Deleting, Data: op.Data}
	if p.live != nil {
		object.Created, object.Modified = p.live.Created, p.live.Modified
	}
	if op.Verb == fsm.Delete {
		object, o.gone = p.live, true
	}
	o.objects = []*fsm.Object{object}
	return o
}

// replay answers a request that was applied before. What it did is recorded;
// whether that removed its object is seen in the view.
func (w *write) replay(v *fsm.View, objects []*fsm.Object) *wire.Response {
	o := outcome{objects: objects}
	if len(objects) > 0 {
		now := v.Get(objects[0].Key)
		o.gone = now == nil || now.UID != objects[0].UID
		o.created = objects[0].Created == objects[0].Modified
	}
	return w.respond(o, true)
}

// respond turns an outcome into the answer. committed says that the outcome
// went through the log.
func (w *write) respond(o outcome, committed bool) *wire.Response {
	status, contentType, body, err := w.encodedAnswer(o)
	if err != nil {
		return w.s.errorResponse(w.req, err)
	}
	header := http.Header{"Content-Type": {contentType}}
	addWarnings(header, w.warnings)
	return &wire.Response{Status: status, Header: header, Body: body, Committed: committed}
}

func (w *write) encodedAnswer(o outcome) (status int, contentType string, body []byte, err error) {
	accept := w.header("Accept")
	if _, ok := w.action.(interface{ asStored() }); ok && !o.gone && len(o.objects) > 0 && o.objects[0] != nil {
		if media, ok := negotiate(accept, shapesObject); ok && media == (mediaType{formProtobuf, shapeObject}) {
			body, err = resource.AppendEnvelope(nil, o.objects[0])
			return o.status(), typeProtobuf, body, err
		}
	}
	status, obj, err := w.answerOf(o)
	if err != nil {
		return 0, "", nil, err
	}
	contentType, body, err = w.s.render(accept, w.info, obj)
	return status, contentType, body, err
}

// answersObject is the part of an action whose answer is its object.
type answersObject struct{}

func (answersObject) answer(w *write, o outcome) (int, runtime.Object, error) {
	return w.objectAnswer(o)
}

// asStored says that the stored bytes will do where they are what is asked for.
func (answersObject) asStored() {}

// status is 201 if the write made its object.
func (o outcome) status() int {
	if o.created {
		return http.StatusCreated
	}
	return http.StatusOK
}

func (w *write) answerOf(o outcome) (int, runtime.Object, error) {
	if len(o.objects) == 0 || o.objects[0] == nil {
		return 0, nil, apierrors.NewInternalError(errors.New("the outcome of the write holds no object"))
	}
	return w.action.answer(w, o)
}

// objectAnswer is the usual answer: the object, 201 if the write made it.
func (w *write) objectAnswer(o outcome) (int, runtime.Object, error) {
	obj, err := resource.Decode(o.objects[0])
	if err != nil {
		return 0, nil, err
	}
	if o.gone {
		// The write took away the last finalizer, and with it the object.
		// Its last state is recorded, with the finalizers that were left.
		accessor, err := meta.Accessor(obj)
		if err != nil {
			return 0, nil, err
		}
		if accessor.GetDeletionTimestamp() != nil {
			accessor.SetFinalizers(nil)
		}
	}
	return o.status(), obj, nil
}

// header is the value of a forwarded header.
func (w *write) header(name string) string { return headerOf(w.req, name) }

// gk is the kind as errors name it.
func (w *write) gk() schema.GroupKind { return w.info.Kind.GVK.GroupKind() }

// key is that of the object which the route names.
func (w *write) key() fsm.Key { return w.info.Kind.Key(w.info.Namespace, w.info.Name) }

// liveObject returns the object that the route names, stored and typed. The
// typed one is shared and read-only. Its absence is a 404.
func (w *write) liveObject(v *fsm.View) (*fsm.Object, runtime.Object, error) {
	live := v.Get(w.key())
	if live == nil {
		return nil, nil, apierrors.NewNotFound(w.info.groupResource(), w.info.Name)
	}
	obj, err := w.s.decoder.Decode(live)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	return live, obj, nil
}

// fillNames gives obj the namespace of the route and, for a write to a named
// object, its name; other names are a 400.
func (w *write) fillNames(obj metav1.Object) error {
	switch {
	case !w.info.Kind.Namespaced:
		obj.SetNamespace("")
	case obj.GetNamespace() == "":
		obj.SetNamespace(w.info.Namespace)
	case obj.GetNamespace() != w.info.Namespace:
		return apierrors.NewBadRequest(fmt.Sprintf("the namespace of the provided object (%s) does not match the namespace sent on the request (%s)", obj.GetNamespace(), w.info.Namespace))
	}
	switch {
	case w.info.Name == "":
	case obj.GetName() == "":
		obj.SetName(w.info.Name)
	case obj.GetName() != w.info.Name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", obj.GetName(), w.info.Name))
	}
	return nil
}

// invalid is the 422 for what validation has found, or nil.
func (w *write) invalid(name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(w.gk(), name, errs)
}

// checkSize refuses an object that is too large to be replicated.
func (w *write) checkSize(op fsm.Op) error {
	if int64(len(op.Data)) > w.s.cfg.MaxRequestBytes {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the object would have %d bytes, limit is %d", len(op.Data), w.s.cfg.MaxRequestBytes))
	}
	return nil
}

// unchanged is the precondition that an object still is the version that a
// decision has read.
func unchanged(o *fsm.Object) fsm.Precondition {
	return fsm.Precondition{Key: o.Key, UID: o.UID, Revision: o.Modified}
}
