package kubernetes

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"testing"
	"testing/iotest"
)

// FuzzScanner holds what the scanner does with any text against encoding/json: what that accepts is
// read alike, however the bytes come, and what it does not accept ends, with no panic.
func FuzzScanner(f *testing.F) {
	for _, text := range []string{
		eventOf(1), `{"a":"\"}{\\","b":[{"c":"]"},1.5e3,true,null],"d\u0065":{"e":""}} "next" 12 null`, `  [ ] {} "" 1`,
		`{"metadata":{"name":"a","labels":{"x":"\ud800","y":null}},"spec":[}]}`, `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}}]}`,
		`{"a":}`, `{"a":,,"b":1}`, `"`, `\`, `{"type":"ERROR","object":{"code":410,"message":"\u0000"}}`, `{"metadata":{"labels":{"a":[1}]}}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		whole := bytes.Clone(text)
		readsAlike(t, text, bytes.NewReader(text))
		readsAlike(t, text, iotest.OneByteReader(bytes.NewReader(text)))
		if json.Valid(text) {
			fieldsAlike(t, bytes.Trim(bytes.Clone(text), " \t\r\n"))
		}
		decodesAlike(t, text)
		for _, part := range []*Part{nil, new(Part)} { // hostile servers send what they like
			d := newDecoder(io.NopCloser(bytes.NewReader(text)), true)
			d.part = part
			for {
				if _, _, err := d.Decode(); err != nil {
					break
				}
			}
			l := newDecoder(io.NopCloser(bytes.NewReader(text)), true)
			l.part = part
			_, _ = l.list()
		}
		if !bytes.Equal(text, whole) {
			t.Errorf("%q has become %q", whole, text)
		}
	})
}

// readsAlike compares the values of a stream, where the whole of it is JSON.
func readsAlike(t *testing.T, text []byte, r io.Reader) {
	t.Helper()
	s := scanner{r: r}
	if json.Valid(text) {
		want := bytes.Trim(text, " \t\r\n")
		if have, err := s.value(); err != nil || !bytes.Equal(have, want) {
			t.Fatalf("%q: %q and %v, want %q", text, have, err, want)
		}
	}
	for range len(text) + 1 {
		if _, err := s.value(); err != nil {
			return
		}
	}
	t.Fatalf("%q does not end", text)
}

// fieldsAlike compares the fields of a value, and what it is as a text and as a map of texts.
func fieldsAlike(t *testing.T, text []byte) {
	t.Helper()
	var want map[string]json.RawMessage
	wantErr := json.Unmarshal(text, &want)
	have := map[string]json.RawMessage{}
	s := scannerOf(text)
	err := s.fields(func(key []byte) error {
		value, err := s.field()
		have[string(key)] = bytes.Clone(value)
		return err
	})
	if (err == nil) != (wantErr == nil) || err == nil && len(want)+len(have) > 0 && !reflect.DeepEqual(have, want) {
		t.Fatalf("%q: %q and %v, want %q and %v", text, have, err, want, wantErr)
	}
	var wantText string
	wantErr = json.Unmarshal(text, &wantText)
	if have, err := stringOf(text, "x"); (err == nil) != (wantErr == nil) || have != wantText {
		t.Fatalf("%q: %q and %v, want %q and %v", text, have, err, wantText, wantErr)
	}
	var wantMap map[string]string
	wantErr = json.Unmarshal(text, &wantMap)
	haveMap, err, readErr := scannerOf(text).mapOf("x", "")
	if readErr != nil || (err == nil) != (wantErr == nil) || err == nil && len(haveMap)+len(wantMap) > 0 && !reflect.DeepEqual(haveMap, wantMap) {
		t.Fatalf("%q: %q and %v, want %q and %v", text, haveMap, err, wantMap, wantErr)
	}
}

// decodesAlike compares the events of a text that comes at once, and byte by byte.
func decodesAlike(t *testing.T, text []byte) {
	t.Helper()
	at, by := newDecoder(io.NopCloser(bytes.NewReader(text)), true), newDecoder(io.NopCloser(iotest.OneByteReader(bytes.NewReader(text))), true)
	for {
		event, want, wantErr := at.Decode()
		other, have, err := by.Decode()
		if event != other || (err == nil) != (wantErr == nil) || err == nil && !reflect.DeepEqual(have, want) {
			t.Fatalf("%q: %s %+v and %v, want %s %+v and %v", text, other, have, err, event, want, wantErr)
		}
		if err != nil {
			return
		}
	}
}
