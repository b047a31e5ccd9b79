package recording

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var records = []Record{
	{Kind: Opened, At: time.Millisecond, Data: []byte("127.0.0.1:15010")},
	{Kind: Request, Delta: true, At: 2 * time.Millisecond, Data: []byte("request")},
	{Kind: Response, Delta: true, At: 3 * time.Second, Data: bytes.Repeat([]byte("r"), 70_000)},
	{Kind: Closed, At: 4 * time.Second, Data: []byte("gone")},
	{Kind: End, At: 5 * time.Second, Data: []byte("ended")},
}

// written returns a recording of records.
func written(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, Header{Upstream: "east", Protocol: "auto", Started: time.Unix(1, 0).UTC()}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if err := w.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	if w.Size() != int64(b.Len()) {
		t.Fatalf("size %d, and %d bytes were written", w.Size(), b.Len())
	}
	return b.Bytes()
}

// all returns the records of a recording, and the error that ends them.
func all(data []byte) (out []Record, err error) {
	r, err := NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	for {
		rec, err := r.Next()
		if err != nil {
			return out, err
		}
		out = append(out, rec)
	}
}

func TestAReaderReadsWhatAWriterWrote(t *testing.T) {
	r, err := NewReader(bytes.NewReader(written(t)))
	if err != nil || r.Header.Upstream != "east" || r.Header.Protocol != "auto" {
		t.Fatalf("header %+v, %v", r.Header, err)
	}
	got, err := all(written(t))
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(records, got); diff != "" {
		t.Error(diff)
	}
}

// TestATornEndIsReadable: wherever a recording is cut, all whole records come, and then a TornError
// with the place.
func TestATornEndIsReadable(t *testing.T) {
	data := written(t)
	var ends []int64
	r, err := NewReader(bytes.NewReader(data))
	for err == nil {
		if _, err = r.Next(); err == nil {
			ends = append(ends, r.at)
		}
	}
	for n := len(data) - 1; n >= int(ends[0]); n -= 97 {
		whole := 0
		for whole < len(ends) && ends[whole] <= int64(n) {
			whole++
		}
		got, err := all(data[:n])
		var torn *TornError
		if !errors.As(err, &torn) || torn.Offset != ends[whole-1] || len(got) != whole {
			t.Fatalf("cut at %d: %d records of %d, %v", n, len(got), whole, err)
		}
	}
}

// TestADamagedByteIsFound: whichever byte changes, the recording is not read to its end without an error.
func TestADamagedByteIsFound(t *testing.T) {
	data := written(t)
	for i := range data {
		if i > 400 && i%501 != 0 && i < len(data)-100 {
			continue
		}
		changed := bytes.Clone(data)
		changed[i] ^= 0x55
		if _, err := all(changed); errors.Is(err, io.EOF) || err == nil {
			t.Errorf("byte %d: no error", i)
		}
	}
}

func TestErrorsTellWhatAndWhere(t *testing.T) {
	data := written(t)
	last := bytes.LastIndex(data, []byte("ended"))
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "at byte 0: this is no recording"},
		{"other file", []byte("upstreams: []\n"), "at byte 0: this is no recording"},
		{"version", []byte("meshrelay recording 2\nabc"), "at byte 0: the recording has version 2 of the format, and this relay reads version 1"},
		{"no header", data[:30], "at byte 22: the recording has no whole header"},
		{"kind", append(bytes.Clone(data[:last-6]), "?xxxxxxxxxxx"...), "there is no kind of record 0x3f"},
		{"checksum", append(bytes.Clone(data[:last]), "eNded1234"...), "its checksum differs"},
		{"more", append(bytes.Clone(data), 'x'), "something follows the end"},
		{"length", append(bytes.Clone(data[:last-6]), 'O', 0x80, 0xce, 0x9c, 0xee, 0x02, 0xff, 0xff, 0xff, 0x7f), "and 65536 are the most"},
	} {
		_, err := all(c.data)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

func TestAWriterKeepsToItsLimit(t *testing.T) {
	var b bytes.Buffer
	const limit = 200_000
	w, err := NewWriter(&b, Header{Upstream: "east"}, limit)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; err == nil; n++ {
		err = w.Add(Record{Kind: Response, Data: make([]byte, 10_000)})
	}
	if !errors.Is(err, ErrFull) || n < 5 {
		t.Fatalf("%d records, %v", n, err)
	}
	if err := w.Add(Record{Kind: End, Data: make([]byte, 1<<20)}); err != nil {
		t.Fatal(err)
	}
	if b.Len() > limit {
		t.Errorf("%d bytes, and %d are the limit", b.Len(), limit)
	}
	if got, err := all(b.Bytes()); !errors.Is(err, io.EOF) || len(got) != n {
		t.Errorf("%d records, want %d and the end: %v", len(got), n, err)
	}
}

type failing struct{ left int }

func (f *failing) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errors.New("no space")
	}
	return len(b), nil
}

func TestAWriterWritesNothingAfterAFailure(t *testing.T) {
	f := &failing{300}
	w, err := NewWriter(f, Header{}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(Record{Kind: Response, Data: make([]byte, 1000)}); err == nil {
		t.Fatal("no error")
	}
	f.left = 1 << 20
	if err := w.Add(Record{Kind: End}); err == nil || f.left != 1<<20 {
		t.Errorf("it went on: %v", err)
	}
}

// TestAReaderMakesNoMoreRoomThanThereAreBytes: a short file that claims a long record costs little.
func TestAReaderMakesNoMoreRoomThanThereAreBytes(t *testing.T) {
	data := append(written(t)[:0:0], written(t)...)
	data = append(data[:bytes.LastIndex(data, []byte("ended"))-6], 'R', 0x80, 0xce, 0x9c, 0xee, 0x02, 0xff, 0xff, 0xff, 0xff, 0x07)
	result := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if _, err := all(data); err == nil {
				b.Fatal("no error")
			}
		}
	})
	if n := result.AllocedBytesPerOp(); n > 4<<20 {
		t.Errorf("%d bytes", n)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(written(f))
	f.Add([]byte("meshrelay recording 1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := all(data)
		if !errors.Is(err, io.EOF) {
			return
		}
		// What is read without an error is what a writer wrote: written again, it reads the same.
		var b bytes.Buffer
		w, err := NewWriter(&b, Header{}, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range got {
			if err := w.Add(r); err != nil {
				t.Fatal(err)
			}
			if _, err := Redact(r); err == nil && r.Kind == Response {
				_ = TypeURL(r)
			}
		}
		again, err := all(b.Bytes())
		if !errors.Is(err, io.EOF) || !cmp.Equal(got, again) {
			t.Errorf("read again: %v", err)
		}
	})
}
