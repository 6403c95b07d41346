package wire

import (
	"sort"

	"google.golang.org/protobuf/encoding/protowire"
)

// Request is one buffered write on its way to the leader. The receiving
// replica draws Nonce once and sends the same Request again to the next leader
// when the first one dies, so that it takes effect exactly once.
//
// Each time it is sent is a copy of its own, told apart by Term and Attempt. A
// copy that was given up may still arrive, long after another was answered. If
// the answer was a refusal, nothing is recorded of it; so the rule is that a
// copy is carried out only by the leader it was sent to, in that term, and
// only before a later copy has arrived there.
//
// A Request is not changed after it was handed to Forward.
type Request struct {
	Nonce [16]byte // drawn by the receiving replica, never zero
	Birth uint64   // the store's revision when the nonce was drawn

	Term    uint64 // of the leader that this copy is sent to; set by Forward
	Attempt uint64 // of the request's copies, counted from 1; set by Forward

	Method   string
	Path     string
	RawQuery string
	Header   map[string][]string // canonical names; only what the leader needs
	Body     []byte

	// Who asks. The leader trusts them because only servers can open a link.
	User   string
	Groups []string
	Node   string // the node's name if an agent asks
}

// Response is the leader's answer to a Request.
type Response struct {
	Status int
	Header map[string][]string
	Body   []byte

	// NotLeader: whoever got the request does not lead (any more); it may have
	// been applied or not. Send the same request to the next leader.
	NotLeader bool
	// Untouched, beside NotLeader: whoever got it has changed nothing for it, and
	// will not. Leaving it false is always safe.
	Untouched bool
	// Committed: this outcome was committed through the log in the term it was
	// decided in (or is the recorded outcome of such a commit). Without it the
	// node confirms, before it answers, that its leadership was real when the
	// decision's reads were made. Leaving it false is always safe.
	Committed bool
}

const (
	reqNonce protowire.Number = iota + 1
	reqBirth
	reqMethod
	reqPath
	reqQuery
	reqHeader
	reqBody
	reqUser
	reqGroup
	reqNode
	reqTerm
	reqAttempt
)

// EncodeRequest returns the binary form of r.
func EncodeRequest(r *Request) []byte {
	e := newEncoder(len(r.Body) + len(r.Path) + len(r.RawQuery) + 512)
	e.bytes(reqNonce, r.Nonce[:])
	e.uint(reqBirth, r.Birth)
	e.string(reqMethod, r.Method)
	e.string(reqPath, r.Path)
	e.string(reqQuery, r.RawQuery)
	e.header(reqHeader, r.Header)
	e.bytes(reqBody, r.Body)
	e.string(reqUser, r.User)
	for _, g := range r.Groups {
		e.item(reqGroup, []byte(g))
	}
	e.string(reqNode, r.Node)
	e.uint(reqTerm, r.Term)
	e.uint(reqAttempt, r.Attempt)
	return e.b
}

// DecodeRequest is the reverse of EncodeRequest. The body aliases b, which the
// caller must not change afterwards.
func DecodeRequest(b []byte) (*Request, error) {
	r := &Request{}
	err := decode(b, MaxMessage, func(f field) error { return r.set(f) })
	if err != nil {
		return nil, err
	}
	if len(r.Body) > MaxBody {
		return nil, malformed("body of %d bytes, at most %d are allowed", len(r.Body), MaxBody)
	}
	if r.Nonce == [16]byte{} {
		return nil, malformed("request without an ID")
	}
	if r.Method == "" || r.Path == "" {
		return nil, malformed("request without method or path")
	}
	if r.Term == 0 || r.Attempt == 0 {
		return nil, malformed("request without the term or the number of the attempt")
	}
	return r, nil
}

// set takes over one field. A request is decoded for each write, too often for
// a table of setters.
func (r *Request) set(f field) error {
	want := protowire.BytesType
	if f.n == reqBirth || f.n == reqTerm || f.n == reqAttempt {
		want = protowire.VarintType
	}
	if f.n >= reqNonce && f.n <= reqAttempt {
		if err := f.is(want); err != nil {
			return err
		}
	}
	switch f.n {
	case reqNonce:
		if len(f.data) != len(r.Nonce) {
			return malformed("nonce of %d bytes", len(f.data))
		}
		copy(r.Nonce[:], f.data)
	case reqBirth:
		r.Birth = f.num
	case reqMethod:
		r.Method = string(f.data)
	case reqPath:
		r.Path = string(f.data)
	case reqQuery:
		r.RawQuery = string(f.data)
	case reqHeader:
		return decodeHeader(&r.Header, f.data)
	case reqBody:
		r.Body = f.data
	case reqUser:
		r.User = string(f.data)
	case reqGroup:
		r.Groups = append(r.Groups, string(f.data))
	case reqNode:
		r.Node = string(f.data)
	case reqTerm:
		r.Term = f.num
	case reqAttempt:
		r.Attempt = f.num
	}
	return nil
}

const (
	respStatus protowire.Number = iota + 1
	respHeader
	respBody
	respNotLeader
	respCommitted
	respUntouched
)

// EncodeResponse returns the binary form of r.
func EncodeResponse(r *Response) []byte {
	e := newEncoder(len(r.Body) + 256)
	e.uint(respStatus, uint64(max(r.Status, 0)))
	e.header(respHeader, r.Header)
	e.bytes(respBody, r.Body)
	e.bool(respNotLeader, r.NotLeader)
	e.bool(respCommitted, r.Committed)
	e.bool(respUntouched, r.Untouched)
	return e.b
}

// DecodeResponse is the reverse of EncodeResponse. The body aliases b.
func DecodeResponse(b []byte) (*Response, error) {
	r := &Response{}
	err := decode(b, MaxMessage, into(map[protowire.Number]any{
		respStatus:    &r.Status,
		respHeader:    func(v []byte) error { return decodeHeader(&r.Header, v) },
		respBody:      &r.Body,
		respNotLeader: &r.NotLeader,
		respCommitted: &r.Committed,
		respUntouched: &r.Untouched,
	}))
	if err != nil {
		return nil, err
	}
	if !r.NotLeader && (r.Status < 100 || r.Status > 999) {
		return nil, malformed("response with status %d", r.Status)
	}
	return r, nil
}

// A header is an embedded message: its name and its values.
const (
	headerName protowire.Number = iota + 1
	headerValue
)

func (e *encoder) header(n protowire.Number, h map[string][]string) {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		one := encoder{}
		one.string(headerName, name)
		for _, v := range h[name] {
			one.item(headerValue, []byte(v))
		}
		e.item(n, one.b)
	}
}

func decodeHeader(h *map[string][]string, b []byte) error {
	var name string
	var values []string
	err := fields(b, func(f field) error {
		switch f.n {
		case headerName:
			name = string(f.data)
		case headerValue:
			values = append(values, string(f.data))
		default:
			return nil
		}
		return f.is(protowire.BytesType)
	})
	if err != nil {
		return err
	}
	if name == "" {
		return malformed("header without a name")
	}
	if *h == nil {
		*h = make(map[string][]string)
	}
	if len((*h)[name]) > 0 {
		values = append((*h)[name], values...)
	}
	(*h)[name] = values
	return nil
}
