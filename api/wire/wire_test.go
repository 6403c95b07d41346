package wire

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

func sampleRequest() *Request {
	return &Request{
		Nonce: [16]byte{1, 2, 3}, Birth: 42, Method: "PATCH", Path: "/api/v1/namespaces/default/pods/web",
		RawQuery: "fieldManager=x", Header: map[string][]string{"Accept": {"application/json", ""}, "Content-Type": {"application/merge-patch+json"}},
		Body: []byte(`{"a":1}`), User: "system:node:w1", Groups: []string{"system:nodes", ""}, Node: "w1",
		Term: 7, Attempt: 2,
	}
}

// roundTrip encodes, decodes and compares, then checks that no prefix of the
// bytes makes the decoder panic.
func roundTrip[T any](t *testing.T, v *T, enc func(*T) []byte, dec func([]byte) (*T, error)) {
	t.Helper()
	b := enc(v)
	got, err := dec(b)
	if err != nil {
		t.Fatalf("%T: %v", v, err)
	}
	if !reflect.DeepEqual(got, v) {
		t.Fatalf("got %+v, want %+v", got, v)
	}
	for i := range b {
		_, _ = dec(b[:i]) // must not panic; a cut between two fields is a valid message
	}
	if !bytes.Equal(enc(got), b) {
		t.Fatalf("%T: the encoding is not stable", v)
	}
	// A field from the future is skipped, a version from the future is refused.
	future := protowire.AppendTag(append([]byte(nil), b...), 1000, protowire.Fixed64Type)
	future = protowire.AppendFixed64(future, 7)
	if got, err = dec(future); err != nil || !reflect.DeepEqual(got, v) {
		t.Fatalf("%T with an unknown field: %+v, %v", v, got, err)
	}
	other := append([]byte{9}, b[1:]...)
	if _, err = dec(other); !errors.Is(err, ErrVersion) {
		t.Fatalf("%T with version 9: %v", v, err)
	}
	if _, err = dec(nil); !errors.Is(err, ErrMalformed) {
		t.Fatalf("%T from nothing: %v", v, err)
	}
}

func TestRoundTrips(t *testing.T) {
	roundTrip(t, sampleRequest(), EncodeRequest, DecodeRequest)
	roundTrip(t, &Response{Status: 201, Header: map[string][]string{"Warning": {"299 - \"a\"", "299 - \"b\""}}, Body: []byte("x"), Committed: true}, EncodeResponse, DecodeResponse)
	roundTrip(t, &Response{NotLeader: true}, EncodeResponse, DecodeResponse)
	roundTrip(t, &ServerStatus{"s1-a", "s1", 3, "s2-b", 10, 9, "disk", "look", 2}, EncodeServerStatus, DecodeServerStatus)
	roundTrip(t, &TermQuery{"s1-a", 7}, EncodeTermQuery, DecodeTermQuery)
	roundTrip(t, &TermReply{"s1-a", 7, -5}, EncodeTermReply, DecodeTermReply)
	roundTrip(t, &ReadIndexReply{7, 99, true}, EncodeReadIndexReply, DecodeReadIndexReply)
	roundTrip(t, &DigestQuery{99}, EncodeDigestQuery, DecodeDigestQuery)
	roundTrip(t, &DigestReply{"s1-a", 1, 2, []byte{1, 0, 3}}, EncodeDigestReply, DecodeDigestReply)
	ages := []Age{{"w1", time.Second}, {"w2", 0}, {"w3", math.MaxInt64}}
	roundTrip(t, &HeartbeatRecord{"s1-a", ages}, EncodeHeartbeatRecord, DecodeHeartbeatRecord)
	roundTrip(t, &HeartbeatRecorded{"s1-a"}, EncodeHeartbeatRecorded, DecodeHeartbeatRecorded)
	roundTrip(t, &AgesReply{"s1-a", 4, time.Minute, ages}, EncodeAgesReply, DecodeAgesReply)
	roundTrip(t, &LevelPromise{2}, EncodeLevelPromise, DecodeLevelPromise)
	roundTrip(t, &TransferRequest{"s2"}, EncodeTransferRequest, DecodeTransferRequest)
	roundTrip(t, &WatchReport{"s1-a", "i1", 7, 1, 6, 99, "s2-b", []PeerView{{"s2-b", "i2", true}, {"s3-c", "", false}}, 12, true, true, "full", true}, EncodeWatchReport, DecodeWatchReport)
}

func TestRequestBounds(t *testing.T) {
	cases := map[string]func(*Request){
		"no nonce":      func(r *Request) { r.Nonce = [16]byte{} },
		"no method":     func(r *Request) { r.Method = "" },
		"no path":       func(r *Request) { r.Path = "" },
		"large body":    func(r *Request) { r.Body = make([]byte, MaxBody+1) },
		"large message": func(r *Request) { r.Body = make([]byte, MaxMessage) },
		"many groups":   func(r *Request) { r.Groups = make([]string, maxItems+1) },
		"no term":       func(r *Request) { r.Term = 0 },
		"no attempt":    func(r *Request) { r.Attempt = 0 },
		"nameless header": func(r *Request) {
			r.Header = map[string][]string{"": {"x"}}
		},
	}
	for name, change := range cases {
		r := sampleRequest()
		change(r)
		if _, err := DecodeRequest(EncodeRequest(r)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := DecodeResponse(EncodeResponse(&Response{})); !errors.Is(err, ErrMalformed) {
		t.Errorf("response without a status: %v", err)
	}
}

// TestRequestEncodingIsFixed pins the format: servers of different versions
// forward to each other.
func TestRequestEncodingIsFixed(t *testing.T) {
	r := &Request{Nonce: [16]byte{15: 1}, Birth: 2, Method: "GET", Path: "/", Header: map[string][]string{"B": {"2"}, "A": {"1"}}, Term: 9, Attempt: 1}
	want := "\x01" + "\x0a\x10" + "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" + "\x10\x02" + "\x1a\x03GET" + "\x22\x01/" +
		"\x32\x06\x0a\x01A\x12\x011" + "\x32\x06\x0a\x01B\x12\x012" + "\x58\x09" + "\x60\x01"
	if got := string(EncodeRequest(r)); got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add(EncodeRequest(sampleRequest()))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRequest(b)
		if err != nil {
			return
		}
		again, err := DecodeRequest(EncodeRequest(r))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(EncodeRequest(again), EncodeRequest(r)) {
			t.Fatal("not stable")
		}
	})
}

func FuzzDecodeSmall(f *testing.F) {
	f.Add(EncodeAgesReply(&AgesReply{"a", 1, 2, []Age{{"n", 3}}}))
	f.Add(EncodeResponse(&Response{Status: 200}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := DecodeAgesReply(b); err == nil {
			for _, a := range r.Ages {
				if a.Age < 0 {
					t.Fatal("negative age")
				}
			}
		}
		_, _ = DecodeResponse(b)
		_, _ = DecodeServerStatus(b)
		_, _ = DecodeLevelPromise(b)
		_, _ = DecodeHeartbeatRecord(b)
	})
}
