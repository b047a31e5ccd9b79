package kubernetes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"meshrelay/internal/text"
)

const (
	leastBuffer = 16 << 10
	// mostBuffer is what a scanner keeps of a buffer that one large object has made grow.
	mostBuffer = 64 << 10
)

// scanner cuts a stream of JSON into values. It looks no further into a value than it takes to find
// its end: whoever uses a part of it checks that part.
type scanner struct {
	r   io.Reader // nil: all has been read
	buf []byte    // buf[at:] has been read, and not been used
	at  int
	// While kept, values stay valid, from buf[from] on. usual is how long was kept before, about.
	kept        bool
	from, usual int
}

// keep has the values that come stay valid until drop.
func (s *scanner) keep() {
	if cap(s.buf)-s.at < s.usual {
		s.compact()
	}
	s.kept, s.from = true, s.at
}

// drop ends what keep has begun.
func (s *scanner) drop() {
	s.kept, s.usual = false, max(s.at-s.from, s.usual-s.usual/8)
}

// compact forgets what has been used.
func (s *scanner) compact() {
	s.buf, s.at = s.buf[:copy(s.buf, s.buf[s.at:])], 0
}

// more reads some more. What has been used is gone after that, unless it is kept.
func (s *scanner) more() error {
	if s.r == nil {
		return io.EOF
	}
	if !s.kept {
		s.compact()
		s.from = 0
	} else if len(s.buf)-s.from > maxObject {
		return errTooLarge
	}
	need := len(s.buf) - s.from
	if full, large := len(s.buf) == cap(s.buf), cap(s.buf) > mostBuffer && need < leastBuffer/2; full || large && !s.kept {
		// Those who have values of the buffer keep it.
		s.buf = append(make([]byte, 0, max(leastBuffer, 2*need)), s.buf[s.from:]...)
		s.at, s.from = s.at-s.from, 0
	}
	for range 100 { // readers that bring nothing
		n, err := s.r.Read(s.buf[len(s.buf):cap(s.buf)])
		if s.buf = s.buf[:len(s.buf)+n]; n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// next returns the next byte that is no space, which stays to be read. It returns io.EOF at the end.
func (s *scanner) next() (byte, error) {
	for {
		for ; s.at < len(s.buf); s.at++ {
			if b := s.buf[s.at]; !isSpace(b) {
				return b, nil
			}
		}
		if err := s.more(); err != nil {
			return 0, err
		}
	}
}

// expect reads one byte, after space.
func (s *scanner) expect(want byte) error {
	b, err := s.next()
	if err != nil {
		return unexpected(err)
	}
	if b != want {
		return fmt.Errorf("the server has sent %q where a list has %q", b, want)
	}
	s.at++
	return nil
}

// value returns the next value, which is valid until the next call of any method, or longer: see keep. It
// returns io.EOF when there is none.
func (s *scanner) value() ([]byte, error) {
	if _, err := s.next(); err != nil {
		return nil, err
	}
	var e extent
	for {
		n := e.end(s.buf[s.at:])
		if n > maxObject || n < 0 && len(s.buf)-s.at > maxObject {
			return nil, errTooLarge
		}
		if n >= 0 {
			v := s.buf[s.at : s.at+n]
			s.at += n
			return v, nil
		}
		if err := s.more(); err != nil {
			if errors.Is(err, io.EOF) && e.scalar() {
				v := s.buf[s.at:]
				s.at = len(s.buf)
				return v, nil
			}
			return nil, unexpected(err)
		}
	}
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\r' || b == '\t' }

// extent finds the end of a value. It goes on where it was when there were not enough bytes.
type extent struct {
	at, depth    int
	quoted       bool
	numberOrWord bool
}

// scalar reports whether the value is one that ends where the text does.
func (e *extent) scalar() bool { return e.numberOrWord && e.depth == 0 }

// end returns how many bytes of b, which begins with the value, are of it, or -1 if more are needed.
func (e *extent) end(b []byte) int {
	i := e.at
	for i < len(b) {
		if e.quoted {
			for i < len(b) && !textMarks[b[i]] {
				i++
			}
			if i == len(b) {
				break
			}
			if b[i] == '\\' {
				i += 2 // what follows is no mark, also where it has not come yet
				continue
			}
			i++
			if e.quoted = false; e.depth == 0 {
				return i
			}
			continue
		}
		if e.numberOrWord && ends[b[i]] {
			return i
		}
		if e.depth > 0 {
			for i < len(b) && !marks[b[i]] {
				i++
			}
			if i == len(b) {
				break
			}
		}
		c := b[i]
		i++
		switch c {
		case '"':
			e.quoted = true
		case '{', '[':
			e.depth++
		case '}', ']':
			if e.depth--; e.depth <= 0 {
				return i
			}
		default:
			e.numberOrWord = e.depth == 0
		}
	}
	e.at = i
	return -1
}

// marks are the bytes outside of strings that tell where an object ends, ends those after a number or a
// word, and textMarks those of strings.
var marks, ends, textMarks = bytesOf(`"{}[]`), bytesOf("\"{}[],: \n\r\t"), bytesOf(`"\`)

func bytesOf(s string) (all [256]bool) {
	for i := range s {
		all[s[i]] = true
	}
	return all
}

var (
	errNoObject = errors.New("the server has sent something else than an object")
	errTooLarge = fmt.Errorf("the server has sent an object of more than %d MiB", maxObject>>20)
)

// noObject is the error where reading has failed within an object.
func (s *scanner) noObject(err error) error {
	if s.r == nil || err == nil {
		return errNoObject
	}
	return unexpected(err)
}

// fields hands the keys of an object to f, which reads the value of each. null is an object without
// any.
func (s *scanner) fields(f func(key []byte) error) error {
	switch c, err := s.next(); {
	case err == nil && c == 'n':
		if v, err := s.value(); err != nil || string(v) != "null" {
			return s.noObject(err)
		}
		return nil
	case err != nil || c != '{':
		return s.noObject(err)
	}
	s.at++
	for first := true; ; first = false {
		switch c, err := s.next(); {
		case err != nil:
			return s.noObject(err)
		case c == '}':
			s.at++
			return nil
		case c == ',' && !first:
			s.at++
		case !first:
			return errNoObject
		}
		key, err := s.value()
		if err != nil {
			return s.noObject(err)
		}
		name, ok := unquoted(key)
		if !ok {
			return errNoObject
		}
		if c, err := s.next(); err != nil || c != ':' {
			return s.noObject(err)
		}
		s.at++
		if err := f(name); err != nil {
			return err
		}
	}
}

// field returns the value of a field.
func (s *scanner) field() ([]byte, error) {
	v, err := s.value()
	if err != nil {
		return nil, s.noObject(err)
	}
	return v, nil
}

// scannerOf returns a scanner of a text that is all there.
func scannerOf(b []byte) *scanner { return &scanner{buf: b} }

// unquoted returns the content of a string. It is a part of b if that has no escapes.
func unquoted(b []byte) ([]byte, bool) {
	if len(b) < 2 || b[0] != '"' {
		return nil, false
	}
	inner := b[1 : len(b)-1]
	plain := utf8.Valid(inner) && bytes.IndexByte(inner, '\\') < 0
	for _, c := range inner {
		plain = plain && c >= ' '
	}
	if plain {
		return inner, true
	}
	var out string
	err := json.Unmarshal(b, &out)
	return []byte(out), err == nil
}

// stringOf returns a value that is a string, or null. path is for the error.
func stringOf(b []byte, path ...string) (string, error) {
	if s, ok := unquoted(b); ok {
		return string(s), nil
	}
	if string(b) == "null" {
		return "", nil
	}
	return "", fmt.Errorf("%s: the value is no string: %s", text.Abbreviate(strings.Join(path, ".")), text.Abbreviate(string(b[:min(len(b), 256)])))
}

// mapOf returns a value that is a map of strings, or null, without the key but. wrong is why it is no
// such map.
func (s *scanner) mapOf(path, but string) (out map[string]string, wrong, err error) {
	begin := s.at - s.from
	err = s.fields(func(key []byte) error {
		value, err := s.field()
		if err != nil || but != "" && string(key) == but {
			return err
		}
		if out == nil {
			out = make(map[string]string)
		}
		name := string(key)
		text, err := stringOf(value, path, name)
		out[name] = text
		if wrong == nil {
			wrong = err
		}
		return nil
	})
	if err != nil {
		s.at, wrong = s.from+begin, fmt.Errorf("%s: the value is no map", path)
		_, err = s.field()
	}
	return out, wrong, err
}
