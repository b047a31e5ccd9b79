package jsonstream

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// flat returns the parts of a text: keys, and how long the values are.
func flat(r io.Reader) (all []string, err error) {
	d := New(r, 100, 6)
	err = d.Object(func(key string) error {
		all = append(all, key)
		if key != "list" {
			return d.Skip()
		}
		return d.Array(func() error {
			var text string
			err := d.Decode(&text)
			all = append(all, text)
			return err
		})
	})
	return all, err
}

func TestPartsAreDecodedInOrder(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":{"b":[1]},"list":["x","y"],"A":1}`: `["a" "list" "x" "y" "A"]`,
		`{"list":null}`:                          `["list"]`,
		`null`:                                   `[]`,
		`{"list":["` + strings.Repeat("x", 95) + `"` + strings.Repeat(`,"y"`, 2) + `]}`: fmt.Sprintf("%q", []string{"list", strings.Repeat("x", 95), "y", "y"}),
		`{"list":["x"` + strings.Repeat(" ", 90) + `,"y"]}`:                             `["list" "x" "y"]`,
	} {
		for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text))} {
			if got, err := flat(r); err != nil || fmt.Sprintf("%q", got) != want {
				t.Errorf("%s: %q, %v", text, got, err)
			}
		}
	}
}

func TestAPartIsBoundedBeforeItIsDecoded(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for name, text := range map[string]string{
		"a value":              `{"a":"` + long,
		"a key":                `{"` + long,
		"an element":           `{"list":["x","` + long,
		"space":                `{"list":["x"` + strings.Repeat(" ", 1000) + `,"y"]}`,
		"space before the end": `{"a":1` + strings.Repeat(" ", 1000),
	} {
		for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text))} {
			if got, err := flat(r); err == nil {
				t.Errorf("%s: %d parts", name, len(got))
			}
		}
	}
	for _, text := range []string{`{` + strings.Repeat(`"a":1,`, 6) + `"a":1}`, `{"list":[` + strings.Repeat(`"x",`, 5) + `"x"]}`, `{"list":[` + strings.Repeat(`"x",`, 4) + `"x"],"a":1}`} {
		if got, err := flat(strings.NewReader(text)); err == nil || len(got) != 6 {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}

func TestWhatIsNoWholeValueIsAnError(t *testing.T) {
	for _, text := range []string{``, `{`, `{"a"`, `{"a":1`, `{"list":["x"`, `{"list":["x"}`, `[]`, `"x"`, `{"list":{}}`, `{"a":1,}`, `{"list":["x",]}`, `{1:2}`, `{"a" 1}`} {
		if got, err := flat(strings.NewReader(text)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}

func TestRenewGoesOnWithWhatWasRead(t *testing.T) {
	d := New(strings.NewReader(`"`+strings.Repeat("x", 1000)+`" 1 2`), 2000, 0)
	for range 2 {
		if err := d.Skip(); err != nil {
			t.Fatal(err)
		}
		d.Renew(1000)
	}
	var last int
	if err := d.Decode(&last); err != nil || last != 2 {
		t.Error(last, err)
	}
	if err := d.Skip(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
