package wire

import (
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// EncodeServerStatus returns the binary form of s.
func EncodeServerStatus(s *ServerStatus) []byte {
	e := newEncoder(128)
	e.string(1, s.ID)
	e.string(2, s.Name)
	e.uint(3, s.Term)
	e.string(4, s.Leader)
	e.uint(5, s.LastIndex)
	e.uint(6, s.AppliedIndex)
	e.string(7, s.Problem)
	e.string(8, s.Notice)
	e.uint(9, s.MaxLevel)
	return e.b
}

// DecodeServerStatus is the reverse of EncodeServerStatus.
func DecodeServerStatus(b []byte) (*ServerStatus, error) {
	s := &ServerStatus{}
	return s, decode(b, MaxSmall, into(map[protowire.Number]any{
		1: &s.ID, 2: &s.Name, 3: &s.Term, 4: &s.Leader, 5: &s.LastIndex, 6: &s.AppliedIndex, 7: &s.Problem, 8: &s.Notice,
		9: &s.MaxLevel,
	}))
}

// EncodeLevelPromise returns the binary form of p.
func EncodeLevelPromise(p *LevelPromise) []byte {
	e := newEncoder(16)
	e.uint(1, p.Level)
	return e.b
}

// DecodeLevelPromise is the reverse of EncodeLevelPromise.
func DecodeLevelPromise(b []byte) (*LevelPromise, error) {
	p := &LevelPromise{}
	return p, decode(b, MaxSmall, into(map[protowire.Number]any{1: &p.Level}))
}

// EncodeDataKeys returns the binary form of k.
func EncodeDataKeys(k *DataKeys) []byte {
	e := newEncoder(64 + len(k.Keys))
	e.string(1, k.ID)
	e.bytes(2, k.Keys)
	return e.b
}

// DecodeDataKeys is the reverse of EncodeDataKeys.
func DecodeDataKeys(b []byte) (*DataKeys, error) {
	k := &DataKeys{}
	return k, decode(b, MaxSmall, into(map[protowire.Number]any{1: &k.ID, 2: &k.Keys}))
}

// EncodeTermQuery returns the binary form of q.
func EncodeTermQuery(q *TermQuery) []byte {
	e := newEncoder(64)
	e.string(1, q.From)
	e.uint(2, q.Term)
	return e.b
}

// DecodeTermQuery is the reverse of EncodeTermQuery.
func DecodeTermQuery(b []byte) (*TermQuery, error) {
	q := &TermQuery{}
	return q, decode(b, MaxSmall, into(map[protowire.Number]any{1: &q.From, 2: &q.Term}))
}

// EncodeTermReply returns the binary form of r.
func EncodeTermReply(r *TermReply) []byte {
	e := newEncoder(64)
	e.string(1, r.ID)
	e.uint(2, r.Term)
	e.uint(3, uint64(r.Wall))
	return e.b
}

// DecodeTermReply is the reverse of EncodeTermReply.
func DecodeTermReply(b []byte) (*TermReply, error) {
	r := &TermReply{}
	return r, decode(b, MaxSmall, into(map[protowire.Number]any{1: &r.ID, 2: &r.Term, 3: &r.Wall}))
}

// EncodeReadIndexReply returns the binary form of r.
func EncodeReadIndexReply(r *ReadIndexReply) []byte {
	e := newEncoder(32)
	e.uint(1, r.Term)
	e.uint(2, r.Index)
	e.bool(3, r.NotLeader)
	return e.b
}

// DecodeReadIndexReply is the reverse of EncodeReadIndexReply.
func DecodeReadIndexReply(b []byte) (*ReadIndexReply, error) {
	r := &ReadIndexReply{}
	return r, decode(b, MaxSmall, into(map[protowire.Number]any{1: &r.Term, 2: &r.Index, 3: &r.NotLeader}))
}

// EncodeDigestQuery returns the binary form of q.
func EncodeDigestQuery(q *DigestQuery) []byte {
	e := newEncoder(16)
	e.uint(1, q.Index)
	return e.b
}

// DecodeDigestQuery is the reverse of EncodeDigestQuery.
func DecodeDigestQuery(b []byte) (*DigestQuery, error) {
	q := &DigestQuery{}
	return q, decode(b, MaxSmall, into(map[protowire.Number]any{1: &q.Index}))
}

// EncodeDigestReply returns the binary form of r.
func EncodeDigestReply(r *DigestReply) []byte {
	e := newEncoder(96)
	e.string(1, r.ID)
	e.uint(2, r.Version)
	e.uint(3, r.Epoch)
	e.bytes(4, r.Sum)
	return e.b
}

// DecodeDigestReply is the reverse of EncodeDigestReply.
func DecodeDigestReply(b []byte) (*DigestReply, error) {
	r := &DigestReply{}
	return r, decode(b, MaxSmall, into(map[protowire.Number]any{1: &r.ID, 2: &r.Version, 3: &r.Epoch, 4: &r.Sum}))
}

// EncodeHeartbeatRecord returns the binary form of r.
func EncodeHeartbeatRecord(r *HeartbeatRecord) []byte {
	e := newEncoder(64 + 32*len(r.Ages))
	e.string(1, r.From)
	e.ages(2, r.Ages)
	return e.b
}

// DecodeHeartbeatRecord is the reverse of EncodeHeartbeatRecord.
func DecodeHeartbeatRecord(b []byte) (*HeartbeatRecord, error) {
	r := &HeartbeatRecord{}
	return r, decode(b, MaxSmall, into(map[protowire.Number]any{
		1: &r.From,
		2: func(v []byte) error { return decodeAge(&r.Ages, v) },
	}))
}

// EncodeHeartbeatRecorded returns the binary form of r.
func EncodeHeartbeatRecorded(r *HeartbeatRecorded) []byte {
	e := newEncoder(32)
	e.string(1, r.ID)
	return e.b
}

// DecodeHeartbeatRecorded is the reverse of EncodeHeartbeatRecorded.
func DecodeHeartbeatRecorded(b []byte) (*HeartbeatRecorded, error) {
	r := &HeartbeatRecorded{}
	return r, decode(b, MaxSmall, into(map[protowire.Number]any{1: &r.ID}))
}

// EncodeAgesReply returns the binary form of r.
func EncodeAgesReply(r *AgesReply) []byte {
	e := newEncoder(64 + 32*len(r.Ages))
	e.string(1, r.ID)
	e.uint(2, r.Term)
	e.uint(3, uint64(max(r.Uptime, 0)))
	e.ages(4, r.Ages)
	return e.b
}

// DecodeAgesReply is the reverse of EncodeAgesReply.
func DecodeAgesReply(b []byte) (*AgesReply, error) {
	r := &AgesReply{}
	var uptime uint64
	err := decode(b, MaxMessage, into(map[protowire.Number]any{
		1: &r.ID, 2: &r.Term, 3: &uptime,
		4: func(v []byte) error { return decodeAge(&r.Ages, v) },
	}))
	r.Uptime = duration(uptime)
	return r, err
}

// EncodeTransferRequest returns the binary form of r.
func EncodeTransferRequest(r *TransferRequest) []byte {
	e := newEncoder(32)
	e.string(1, r.Name)
	return e.b
}

// DecodeTransferRequest is the reverse of EncodeTransferRequest.
func DecodeTransferRequest(b []byte) (*TransferRequest, error) {
	r := &TransferRequest{}
	return r, decode(b, MaxSmall, into(map[protowire.Number]any{1: &r.Name}))
}

// EncodeWatchReport returns the binary form of r.
func EncodeWatchReport(r *WatchReport) []byte {
	e := newEncoder(128 + 80*len(r.Peers))
	e.string(1, r.ID)
	e.string(2, r.Incarnation)
	e.uint(3, r.Term)
	e.uint(4, r.State)
	e.uint(5, r.LastTerm)
	e.uint(6, r.LastIndex)
	e.string(7, r.Elect)
	for _, p := range r.Peers {
		one := encoder{}
		one.string(1, p.ID)
		one.string(2, p.Incarnation)
		one.bool(3, p.Heard)
		e.item(8, one.b)
	}
	e.uint(9, r.Sequence)
	e.bool(10, r.DiskHangs)
	e.bool(11, r.DiskWorks)
	e.bool(12, r.Behind)
	e.string(13, r.DiskFails)
	return e.b
}

// DecodeWatchReport is the reverse of EncodeWatchReport.
func DecodeWatchReport(b []byte) (*WatchReport, error) {
	r := &WatchReport{}
	return r, decode(b, MaxReport, into(map[protowire.Number]any{
		1: &r.ID, 2: &r.Incarnation, 3: &r.Term, 4: &r.State, 5: &r.LastTerm, 6: &r.LastIndex, 7: &r.Elect,
		8: func(v []byte) error {
			var p PeerView
			if err := fields(v, into(map[protowire.Number]any{1: &p.ID, 2: &p.Incarnation, 3: &p.Heard})); err != nil {
				return err
			}
			if p.ID == "" {
				return malformed("view of a peer without an ID")
			}
			r.Peers = append(r.Peers, p)
			return nil
		},
		9: &r.Sequence, 10: &r.DiskHangs, 11: &r.DiskWorks, 12: &r.Behind, 13: &r.DiskFails,
	}))
}

func (e *encoder) ages(n protowire.Number, ages []Age) {
	for _, a := range ages {
		one := encoder{}
		one.string(1, a.Node)
		one.uint(2, uint64(max(a.Age, 0)))
		e.item(n, one.b)
	}
}

func decodeAge(ages *[]Age, b []byte) error {
	var a Age
	var age uint64
	if err := fields(b, into(map[protowire.Number]any{1: &a.Node, 2: &age})); err != nil {
		return err
	}
	if a.Node == "" {
		return malformed("age without a node")
	}
	a.Age = duration(age)
	*ages = append(*ages, a)
	return nil
}

// duration caps at the longest duration instead of turning negative.
func duration(v uint64) time.Duration { return time.Duration(min(v, math.MaxInt64)) }
