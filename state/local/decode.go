package local

import (
	"fmt"
	"time"
	"unique"

	"google.golang.org/protobuf/proto"

	"meshrelay/internal/panics"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

// decoder decodes the records of a log. One goroutine uses it.
type decoder struct {
	texts map[string]string // texts that records share, by text
	at    statepb.Time      // scratch for parse
}

// storedRecord is a statepb.Record, and storedResource a statepb.Resource. Their slices are parts of
// the encoded message: a restart decodes each record, and the generated code would copy each field.
type storedRecord struct {
	resource, original     storedResource
	typeURL, version, hash []byte
	at                     time.Time
}

type storedResource struct {
	encoded, source, cluster, version, kindOf []byte
}

// fault lets a test panic at a key.
var fault func(mirror.Key)

func newDecoder() *decoder { return &decoder{texts: map[string]string{}} }

// record decodes a record, with its key and its encoded resource. It returns a panic as an error.
func (d *decoder) record(keyBytes, b, data []byte) (state.Record, error) {
	return panics.Value(func() (state.Record, error) { return d.decode(keyBytes, b, data) })
}

func (d *decoder) decode(keyBytes, b, data []byte) (r state.Record, err error) {
	kindBytes, full, err := splitKey(keyBytes)
	if err != nil {
		return r, err
	}
	if fault != nil {
		key, _ := parseKey(keyBytes)
		fault(key)
	}
	m, err := d.parse(b)
	if err != nil {
		return r, err
	}
	resource, err := d.resource(kindBytes, &m.resource, data)
	if err != nil {
		return r, err
	}
	if kind := resource.Kind(); resource.FullName() != string(full) || kind.Group+"/"+kind.Kind != string(kindBytes) {
		return r, fmt.Errorf("the record is of %s", resource.Key())
	}
	if m.original.encoded != nil {
		if r.Original, err = d.resource(kindBytes, &m.original, m.original.encoded); err != nil {
			return r, fmt.Errorf("the original: %w", err)
		}
	}
	r.Resource, r.TypeURL, r.Version, r.At = resource, d.text(m.typeURL), resource.SourceVersion(), m.at
	if string(m.version) != r.Version {
		r.Version = string(m.version)
	}
	copy(r.Hash[:], m.hash)
	return r, nil
}

func (d *decoder) resource(kindBytes []byte, m *storedResource, data []byte) (*mirror.Resource, error) {
	if len(m.kindOf) > 0 {
		kindBytes = m.kindOf
	}
	kind, err := parseKind(d.text(kindBytes))
	if err != nil {
		return nil, err
	}
	return mirror.Restore(kind, data, d.text(m.source), d.text(m.cluster), m.version)
}

// text returns a text that many records share.
func (d *decoder) text(b []byte) string {
	s, known := d.texts[string(b)]
	if !known {
		s = unique.Make(string(b)).Value()
		d.texts[s] = s
	}
	return s
}

// parse decodes a statepb.Record. Tests compare it with the generated code.
func (d *decoder) parse(b []byte) (r storedRecord, err error) {
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
			err = proto.Unmarshal(c.Value(), &d.at)
			r.at = decodeTime(&d.at)
		}
	}
	if err == nil {
		err = c.Err()
	}
	return r, err
}

func (r *storedResource) parse(b []byte) error {
	byNumber := [...]*[]byte{&r.encoded, &r.source, &r.cluster, &r.version, &r.kindOf} // from 1
	c := wire.Fields(b)
	for c.Next() {
		if n := int(c.Number); n <= len(byNumber) && c.Bytes(c.Number) {
			*byNumber[n-1] = c.Value()
		}
	}
	return c.Err()
}
