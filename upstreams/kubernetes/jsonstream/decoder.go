// Package jsonstream decodes JSON of any length part by part. It bounds the bytes of each part before it decodes
// the part.
//
// The package must not know what the JSON means.
package jsonstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	kjson "sigs.k8s.io/json"
)

// Decoder decodes a stream of JSON. Keys of objects are case-sensitive. One goroutine uses it.
type Decoder struct {
	body  *bounded
	json  kjson.Decoder
	parts int // that may come
}

// bounded reads a stream. It fails when one part needs more than left bytes.
type bounded struct {
	io.Reader
	most, left int
}

// begin begins a part.
func (b *bounded) begin() { b.left = b.most }

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the server has sent a value of more than %d KiB", b.most>>10)
	}
	n, err := b.Reader.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// New returns a decoder of r. It is an error if a value or a key has more than so many bytes, or if Object and
// Array meet more than so many fields and elements.
func New(r io.Reader, bytes, parts int) *Decoder {
	b := &bounded{Reader: r, most: bytes}
	return &Decoder{body: b, json: kjson.NewDecoderCaseSensitivePreserveInts(b), parts: parts}
}

// Decode decodes the next value. It returns io.EOF at the end of the stream.
func (d *Decoder) Decode(to any) error {
	d.body.begin()
	return d.json.Decode(to)
}

// Skip reads the next value.
func (d *Decoder) Skip() error {
	var skipped json.RawMessage
	return d.Decode(&skipped)
}

// Renew drops the buffer if the last value had more than some bytes: a decoder keeps one for its largest value. It is
// called between two values of a stream.
func (d *Decoder) Renew(bytes int) {
	if d.body.most-d.body.left > bytes {
		d.json = kjson.NewDecoderCaseSensitivePreserveInts(io.MultiReader(d.json.Buffered(), d.body))
	}
}

// Object calls f before the value of each key of an object. f decodes the value. null is an object without keys.
func (d *Decoder) Object(f func(key string) error) error {
	return d.elements('{', '}', func() error {
		key, err := d.token()
		if err != nil {
			return err
		}
		return f(key.(string))
	})
}

// Array calls f before each element of an array. f decodes the element. null is an array without elements.
func (d *Decoder) Array(f func() error) error { return d.elements('[', ']', f) }

func (d *Decoder) elements(begin, end json.Delim, f func() error) error {
	t, err := d.token()
	if t == begin {
		for err == nil && d.more() {
			if d.parts--; d.parts < 0 {
				return errors.New("the server has sent too many fields and elements")
			}
			err = f()
		}
		if err == nil {
			t, err = d.token()
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err == nil && t != nil && t != end:
		return fmt.Errorf("the server has sent something else than %c %c", begin, end)
	}
	return err
}

func (d *Decoder) more() bool {
	d.body.begin()
	return d.json.More()
}

func (d *Decoder) token() (json.Token, error) {
	d.body.begin()
	return d.json.Token()
}
