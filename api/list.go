package api

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shepherd-project/shepherd/api/resource"
	"github.com/shepherd-project/shepherd/fsm"
)

// serveList answers a list: one page of a collection at one revision.
func (s *Server) serveList(w http.ResponseWriter, r *http.Request, info requestInfo) {
	media, ok := negotiate(r.Header.Get("Accept"), shapesList)
	if !ok {
		s.writeError(w, r, errNotAcceptable(acceptedTypes))
		return
	}
	options, err := parseListOptions(info)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	view, after, err := s.listView(r.Context(), info, options)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	// Whoever may read is asked of the newest state, also for an old page.
	if err := s.authorize(s.cfg.Store.View(), identityFrom(r.Context()), info); err != nil {
		s.writeError(w, r, err)
		return
	}
	page, err := s.listPage(view, options, after)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	s.writePage(w, r, info, media, page)
}

// listView gives the state that a list reads and the key that it starts behind.
func (s *Server) listView(ctx context.Context, info requestInfo, o listOptions) (*fsm.View, fsm.Key, error) {
	if o.Continue != "" {
		return s.continueView(ctx, info, o)
	}
	exact := o.ResourceVersionMatch == metav1.ResourceVersionMatchExact ||
		o.ResourceVersionMatch == "" && o.Limit > 0
	if o.revision == 0 || !exact {
		view, err := s.readView(ctx, o.revision)
		return view, fsm.Key{}, err
	}
	if err := s.waitRevision(ctx, o.revision); err != nil {
		return nil, fsm.Key{}, err
	}
	view, err := s.cfg.Store.ViewAt(o.revision)
	if err != nil {
		return nil, fsm.Key{}, s.storeError(err, o.revision)
	}
	return view, fsm.Key{}, nil
}

// continueView is listView for a later page.
func (s *Server) continueView(ctx context.Context, info requestInfo, o listOptions) (*fsm.View, fsm.Key, error) {
	token, err := parseContinue(o.Continue)
	if err != nil {
		return nil, fsm.Key{}, err
	}
	if o.revision != 0 {
		return nil, fsm.Key{}, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	after := info.Kind.Key(token.Namespace, token.Name)
	if info.Namespace != "" && token.Namespace != info.Namespace {
		return nil, fsm.Key{}, apierrors.NewBadRequest("continue key is not valid: it belongs to another list")
	}
	if token.Revision == 0 {
		view, err := s.readView(ctx, 0)
		return view, after, err
	}
	if err := s.waitRevision(ctx, token.Revision); err != nil {
		return nil, fsm.Key{}, err
	}
	view, err := s.cfg.Store.ViewAt(token.Revision)
	if err != nil {
		return nil, fsm.Key{}, s.continueError(err, token)
	}
	return view, after, nil
}

// page is the outcome of a list.
type page struct {
	items []*fsm.Object
	meta  metav1.ListMeta
}

// listPage collects the objects behind after that match, up to the limit.
func (s *Server) listPage(view *fsm.View, o listOptions, after fsm.Key) (page, error) {
	p := page{meta: metav1.ListMeta{ResourceVersion: resource.FormatRevision(view.Revision())}}
	sel := o.selector
	if sel.name != "" && (sel.namespace != "" || !sel.kind.Namespaced) {
		return p, s.listOne(&p, view, sel, after)
	}
	var rest int64
	for obj := range view.ListAfter(sel.kind.GroupResource(), sel.namespace, after) {
		full := o.Limit > 0 && int64(len(p.items)) == o.Limit
		if full && sel.empty() {
			rest++ // only their number is of interest
			continue
		}
		ok, err := sel.matches(s.decoder, obj)
		if err != nil {
			return p, err
		}
		if !ok {
			continue
		}
		if full {
			rest++
			break
		}
		p.items = append(p.items, obj)
	}
	if rest > 0 {
		last := p.items[len(p.items)-1].Key
		p.meta.Continue = continueToken{Revision: view.Revision(), Namespace: last.Namespace, Name: last.Name}.encode()
		if sel.empty() {
			p.meta.RemainingItemCount = &rest
		}
	}
	return p, nil
}

// listOne is listPage for a selector that names the only candidate.
func (s *Server) listOne(p *page, view *fsm.View, sel selector, after fsm.Key) error {
	obj := view.Get(sel.kind.Key(sel.namespace, sel.name))
	if obj == nil || after.Name != "" && obj.Key.Compare(after) <= 0 {
		return nil
	}
	ok, err := sel.matches(s.decoder, obj)
	if ok {
		p.items = append(p.items, obj)
	}
	return err
}

// writePage sends a page in the negotiated form.
func (s *Server) writePage(w http.ResponseWriter, r *http.Request, info requestInfo, media mediaType, p page) {
	var list runtime.Object
	gvk := info.Kind.GVK.GroupVersion().WithKind(info.Kind.GVK.Kind + "List")
	switch media.shape {
	case shapeObject:
		s.streamList(w, r, info, media, gvk, p)
		return
	case shapeTable:
		objs, err := s.decodeAll(p.items)
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		table, err := s.tableOf(info.Kind, info.Query, objs)
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		table.ListMeta, list, gvk = p.meta, table, tableGVK
	case shapeMetaList:
		partial := &metav1.PartialObjectMetadataList{ListMeta: p.meta, Items: make([]metav1.PartialObjectMetadata, 0, len(p.items))}
		objs, err := s.decodeAll(p.items)
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		for _, obj := range objs {
			item, err := partialMetadata(obj)
			if err != nil {
				s.writeError(w, r, err)
				return
			}
			partial.Items = append(partial.Items, *item)
		}
		list, gvk = partial, partialListGVK
	}
	body, err := encodeObject(media.form, gvk, list)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	if media.form == formJSON && isPretty(info.Query) {
		body = indent(body)
	}
	s.writeBody(w, r, http.StatusOK, media.form.contentType(), body)
}

func (s *Server) decodeAll(items []*fsm.Object) ([]runtime.Object, error) {
	objs := make([]runtime.Object, len(items))
	for i, o := range items {
		obj, err := s.decoder.Decode(o)
		if err != nil {
			return nil, err
		}
		objs[i] = obj
	}
	return objs, nil
}
