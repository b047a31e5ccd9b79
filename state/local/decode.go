package local

import (
	"errors"
	"fmt"
	"time"
	"unique"

	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/internal/wire"
	"meshrelay/mirror"
	"meshrelay/state"
)

// decoder decodes the records of a log. It shares texts and kinds between records. One goroutine uses it.
type decoder struct {
	texts map[string]string
	kinds map[string]mirror.Kind
}

// storedRecord is a statepb.Record, and storedResource a statepb.Resource. Their slices are parts of
// the encoded message: a restart decodes each record, and the generated code would copy each field.
type storedRecord struct {
	resource, original     storedResource
	typeURL, version, hash []byte
	at                     time.Time
}

type storedResource struct {
	there                                     bool
	encoded, source, cluster, version, kindOf []byte
}

// fault lets a test panic at a key.
var fault func(mirror.Key)

// record decodes a record, with its key and its encoded resource. It returns a panic as an error.
func (d *decoder) record(keyBytes, b, data []byte) (r state.Record, err error) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			r, err = state.Record{}, p
		}
	}()
	kindBytes, full, err := splitKey(keyBytes)
	if err != nil {
		return r, err
	}
	kind, err := d.kind(kindBytes)
	if err != nil {
		return r, err
	}
	if fault != nil {
		key, _ := parseKey(keyBytes)
		fault(key)
	}
	m, err := parseRecord(b)
	if err != nil {
		return r, err
	}
	if !m.resource.there {
		return r, errors.New("the record has no resource")
	}
	if r.Resource, err = d.resource(kind, &m.resource, data); err != nil {
		return r, err
	}
	if r.Resource.FullName() != string(full) || r.Resource.Kind() != kind {
		return r, fmt.Errorf("the record is of %s", r.Resource.Key())
	}
	if m.original.there {
		if r.Original, err = d.resource(kind, &m.original, m.original.encoded); err != nil {
			return r, fmt.Errorf("the original: %w", err)
		}
	}
	r.TypeURL, r.Version, r.At = d.text(m.typeURL), r.Resource.SourceVersion(), m.at
	if string(m.version) != r.Version {
		r.Version = string(m.version)
	}
	copy(r.Hash[:], m.hash)
	return r, nil
}

func (d *decoder) resource(kind mirror.Kind, m *storedResource, data []byte) (_ *mirror.Resource, err error) {
	if len(m.kindOf) > 0 {
		if kind, err = d.kind(m.kindOf); err != nil {
			return nil, err
		}
	}
	return mirror.Restore(kind, data, d.text(m.source), d.text(m.cluster), m.version)
}

// text returns a text that many records share.
func (d *decoder) text(b []byte) string {
	s, known := d.texts[string(b)]
	if !known {
		if d.texts == nil {
			d.texts = map[string]string{}
		}
		s = unique.Make(string(b)).Value()
		d.texts[s] = s
	}
	return s
}

func (d *decoder) kind(b []byte) (kind mirror.Kind, err error) {
	kind, known := d.kinds[string(b)]
	if !known {
		if kind, err = parseKind(unique.Make(string(b)).Value()); err != nil {
			return kind, err
		}
		if d.kinds == nil {
			d.kinds = map[string]mirror.Kind{}
		}
		d.kinds[string(b)] = kind
	}
	return kind, nil
}

// parseRecord decodes a statepb.Record. Tests compare it with the generated code.
func parseRecord(b []byte) (r storedRecord, err error) {
	c := wire.Fields(b)
	for c.Next() && err == nil {
		switch {
		case c.Bytes(1):
			err = r.resource.parse(c.Value())
		case c.Bytes(2):
			err = r.original.parse(c.Value())
		case c.Bytes(3):
			r.typeURL = c.Value()
		case c.Bytes(4):
			r.version = c.Value()
		case c.Bytes(5):
			r.hash = c.Value()
		case c.Bytes(6):
			r.at, err = parseTime(c.Value())
		}
	}
	if err == nil {
		err = c.Err()
	}
	return r, err
}

func (r *storedResource) parse(b []byte) error {
	r.there = true
	c := wire.Fields(b)
	for c.Next() {
		switch {
		case c.Bytes(1):
			r.encoded = c.Value()
		case c.Bytes(2):
			r.source = c.Value()
		case c.Bytes(3):
			r.cluster = c.Value()
		case c.Bytes(4):
			r.version = c.Value()
		case c.Bytes(5):
			r.kindOf = c.Value()
		}
	}
	return c.Err()
}

// parseTime decodes a statepb.Time.
func parseTime(b []byte) (time.Time, error) {
	c := wire.Fields(b)
	var seconds int64
	var nanos uint64
	for c.Next() {
		switch c.Number {
		case 1:
			seconds = protowire.DecodeZigZag(c.Uint())
		case 2:
			nanos = c.Uint()
		}
	}
	return timeOf(seconds, nanos), c.Err()
}
