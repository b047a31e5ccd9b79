package upstreams

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/mirror"
	"meshrelay/state"
)

// kept returns what is kept of a record that holds something.
func (r *record) kept(typeURL string) state.Record {
	return state.Record{
		Resource: r.resource, Original: r.original, TypeURL: typeURL, Version: r.version,
		Hash: r.hash.Bytes(), At: time.Unix(r.at, 0),
	}
}

// size returns what a record holds, in bytes.
func (r *record) size() (n int) {
	if r.resource != nil {
		n = len(r.resource.DeltaEntry())
	}
	if r.original != nil {
		n += len(r.original.DeltaEntry())
	}
	return n
}

// account notes that a record holds another number of bytes.
func (t *table) account(before, after int) {
	t.bytes += after - before
	switch {
	case before == 0 && after > 0:
		t.resources++
	case before > 0 && after == 0:
		t.resources--
	}
}

// errFull says that there is no room for what is new.
var errFull = errors.New("the upstream has more than")

// overLimit begins what is said of what is refused by limits.
const overLimit = "over the limit: "

// maxKeptName bounds the names that are kept of what is refused, in bytes. A namespace and a
// name have 253 characters at most.
const maxKeptName = 1024

// room returns an error when an element is larger than the limits allow, or there is no
// room for it. What is held already stays. rec is nil for a new name.
func (t *table) room(sp *spelling, rec *record, name []byte, size int) error {
	l := t.limits
	if len(name) > maxKeptName {
		return fmt.Errorf("the name has %d characters, and none is longer than %d", len(name), maxKeptName)
	}
	if l.MaxResourceBytes > 0 && size > l.MaxResourceBytes {
		return fmt.Errorf(overLimit+"%d bytes, and limits.maxResourceBytes of the upstream is %d", size, l.MaxResourceBytes)
	}
	held := 0
	if rec != nil {
		held = rec.size()
	}
	if held == 0 && l.MaxResources > 0 && t.resources >= l.MaxResources {
		return fmt.Errorf(overLimit+"%w limits.maxResources, which is %d", errFull, l.MaxResources)
	}
	if l.MaxBytes > 0 && size > held && t.bytes+size-held > l.MaxBytes {
		return fmt.Errorf(overLimit+"%w limits.maxBytes, which is %d", errFull, l.MaxBytes)
	}
	if held == 0 && len(t.gate.leaving) > 0 {
		if key, ok := keyOf(sp.kind, string(name)); ok {
			return t.gate.room(l, t.importer.keyOf(key), t.resources, t.bytes+size)
		}
	}
	return nil
}

// overLimit counts what is refused now on account of limits.
func (t *table) overLimit() (n int) {
	for _, sp := range t.byURL {
		over := 0
		for _, reason := range sp.refused {
			if strings.HasPrefix(reason, overLimit) {
				over++
			}
		}
		if over > 0 {
			over += sp.moreRefused
		}
		n += over
	}
	return n
}

// records returns all that is held, as it would be kept on disk.
func (t *table) records() (out []state.Record) {
	for url, sp := range t.byURL {
		for _, rec := range sp.byName {
			if rec.resource != nil {
				out = append(out, rec.kept(url))
			}
		}
	}
	return out
}

// adopt takes over records of before, under rules that may be other ones now: same says
// that they are not. Under other rules the server is asked for all content again. Of types
// that are not asked for nothing is taken over. Nothing is told to the gate.
//
// It returns the keys under which what the rules leave out now is held: all but those of
// services whose endpoints are asked for.
func (t *table) adopt(records []state.Record, same bool, asked map[string]bool) (held []mirror.Key) {
	for _, r := range records {
		if info, ok := mirror.LookupKind(r.Resource.Kind()); ok && r.TypeURL == "" {
			r.TypeURL = info.TypeURLs()[0] // it was not had from a server
		}
		kind, version, err := mirror.ParseTypeURL(r.TypeURL)
		if err != nil || !asked[r.TypeURL] {
			continue
		}
		original := r.Original
		if original == nil {
			original = r.Resource
		}
		sp, name := t.spelling(kind, version, r.TypeURL), original.FullName()
		key, ok := keyOf(kind, name)
		elsewhere := !ok || t.importer.keyOf(key) != r.Resource.Key()
		if sp.byName[name] != nil || same && elsewhere {
			continue // it is held under rules of before
		}
		rec := &record{resource: r.Resource, original: r.Original, at: r.At.Unix(), relayed: t.importer.believed(original)}
		sp.byName[name] = rec
		if same {
			rec.hash, rec.version = hashOf(r.Hash), r.Version
			if t.discovery != nil && t.importer.discovers(original) {
				rec.original = original
				t.discovery.follow(rec, original) //nolint:errcheck // its endpoints are asked for, and what is held stays until then
			}
			t.account(0, rec.size())
			continue
		}
		if elsewhere {
			rec.resource, rec.original = nil, nil // it will be held under another key
		}
		var out outcome
		if _, err := t.take(sp, rec, original, nil); err != nil {
			sp.refuse(name, err, &out)
			if p := (*mirror.Panic)(nil); errors.As(err, &p) {
				rec.resource, rec.original = nil, nil // it is set aside
			}
		}
		t.account(0, rec.size())
		if t.discovery == nil || !t.discovery.waitsFor(rec) {
			held = append(held, r.Resource.Key())
		}
	}
	return held
}

func hashOf(b [16]byte) xxh3.Uint128 {
	return xxh3.Uint128{Hi: binary.BigEndian.Uint64(b[:8]), Lo: binary.BigEndian.Uint64(b[8:])}
}

// sayAll tells the gate all that the server has. The caller is between restate and finish.
func (t *table) sayAll() {
	for kind, spellings := range t.byKind {
		names := map[string]struct{}{}
		for _, sp := range spellings {
			for name, rec := range sp.byName {
				if rec.resource != nil {
					names[name] = struct{}{}
				}
			}
		}
		for name := range t.leaving[kind] {
			names[name] = struct{}{}
		}
		t.fold(kind, slices.Collect(maps.Keys(names)))
	}
}
