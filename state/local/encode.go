package local

import (
	"errors"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

// encodeKey encodes the key of a resource: the length of the kind as a varint, the kind ("group/Kind"),
// and the full name.
func encodeKey(k mirror.Key) []byte {
	kind := k.Kind.Group + "/" + k.Kind.Kind
	return append(protowire.AppendVarint(nil, uint64(len(kind))), kind+k.FullName()...)
}

// splitKey returns the kind and the full name of an encoded key.
func splitKey(b []byte) (kind, full []byte, err error) {
	n, m := protowire.ConsumeVarint(b)
	if m < 0 || n > uint64(len(b)-m) {
		return nil, nil, errors.New("the key is not valid")
	}
	return b[m : m+int(n)], b[m+int(n):], nil
}

// parseKey is the inverse of encodeKey.
func parseKey(b []byte) (mirror.Key, error) {
	kind, name, err := splitKey(b)
	if err != nil {
		return mirror.Key{}, err
	}
	k := mirror.Key{}
	if k.Kind, err = parseKind(string(kind)); err != nil {
		return k, err
	}
	full := string(name)
	if k.Kind == mirror.MeshConfig {
		k.Name = full
		return k, nil
	}
	k.Namespace, k.Name, err = mirror.ParseFullName(full)
	return k, err
}

func parseKind(s string) (mirror.Kind, error) {
	group, kind, ok := strings.Cut(s, "/")
	if !ok {
		return mirror.Kind{}, errors.New("the kind is not valid")
	}
	return mirror.Kind{Group: group, Kind: kind}, nil
}

// encodeRecord encodes the record of a key, without the encoded resource.
func encodeRecord(key mirror.Key, r *state.Record) ([]byte, error) {
	m := &statepb.Record{
		Resource: encodeResource(key.Kind, r.Resource), TypeUrl: []byte(r.TypeURL), Version: []byte(r.Version), At: encodeTime(r.At.Truncate(time.Second)),
	}
	if r.Original != nil {
		m.Original = encodeResource(key.Kind, r.Original)
		m.Original.Any = r.Original.Any()
	}
	if r.Hash != [16]byte{} {
		m.Hash = r.Hash[:]
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

func encodeResource(kind mirror.Kind, r *mirror.Resource) *statepb.Resource {
	m := &statepb.Resource{Source: []byte(r.Source()), Cluster: []byte(r.Cluster()), SourceVersion: []byte(r.SourceVersion())}
	if k := r.Kind(); k != kind {
		m.Kind = []byte(k.Group + "/" + k.Kind)
	}
	return m
}

// encodeTime returns nil for the zero time.
func encodeTime(t time.Time) *statepb.Time {
	if t.IsZero() {
		return nil
	}
	return &statepb.Time{Seconds: t.Unix(), Nanos: uint64(t.Nanosecond())}
}

func decodeTime(m *statepb.Time) time.Time {
	if m == nil {
		return time.Time{}
	}
	return time.Unix(m.Seconds, int64(min(m.Nanos, 999_999_999))).UTC()
}

// encodeMeta returns a ledger without the counts of resources and revisions.
func encodeMeta(m state.Meta) *statepb.Ledger {
	l := &statepb.Ledger{
		Synced: m.Synced, LastContact: encodeTime(m.LastContact), Fingerprint: []byte(m.Fingerprint), HeldSince: encodeTime(m.HeldSince),
		HeldRan: uint64(max(m.HeldRan, 0)), ServeWithout: encodeTime(m.ServeWithout), Held: uint64(max(m.Held, 0)), Identity: []byte(m.Identity), InContact: m.InContact,
		RootNamespace: []byte(m.RootNamespace),
	}
	for _, name := range m.Server {
		l.Server = append(l.Server, []byte(name))
	}
	if f := m.Frozen; f != nil {
		l.Frozen = &statepb.Frozen{Since: encodeTime(f.Since), Revision: f.Revision, Reason: []byte(f.Reason), Order: []byte(f.Order), Empty: f.Empty}
	}
	return l
}

// sameMeta reports whether two Metas have the same encoding.
func sameMeta(a, b state.Meta) bool { return proto.Equal(encodeMeta(a), encodeMeta(b)) }

func decodeMeta(l *statepb.Ledger) state.Meta {
	m := state.Meta{
		Synced: l.GetSynced(), LastContact: decodeTime(l.GetLastContact()), Fingerprint: string(l.GetFingerprint()), HeldSince: decodeTime(l.GetHeldSince()),
		HeldRan: max(time.Duration(l.GetHeldRan()), 0), ServeWithout: decodeTime(l.GetServeWithout()), Held: int(min(l.GetHeld(), math.MaxInt32)), Identity: string(l.GetIdentity()), InContact: l.GetInContact(),
		RootNamespace: string(l.GetRootNamespace()),
	}
	for _, name := range l.GetServer() {
		m.Server = append(m.Server, string(name))
	}
	if f := l.GetFrozen(); f != nil {
		m.Frozen = &state.Frozen{Since: decodeTime(f.Since), Revision: f.Revision, Reason: string(f.Reason), Order: string(f.Order), Empty: f.Empty}
	}
	return m
}

func encodeRevision(r *state.Revision) *statepb.Revision {
	c := &statepb.Revision{
		Time: encodeTime(r.Time), Added: uint64(r.Added), Changed: uint64(r.Changed), Removed: uint64(r.Removed), Resources: uint64(r.Resources),
		By: []byte(r.By),
	}
	for _, key := range r.Keys {
		c.Keys = append(c.Keys, []byte(key))
	}
	return c
}

func decodeRevision(id uint64, c *statepb.Revision) state.Revision {
	r := state.Revision{
		ID: id, Time: decodeTime(c.Time), Added: int(c.Added), Changed: int(c.Changed), Removed: int(c.Removed), Resources: int(c.Resources), By: string(c.By),
	}
	for _, key := range c.Keys {
		r.Keys = append(r.Keys, string(key))
	}
	return r
}
