package recording

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
	"time"
)

// BadError is the error of a file that is no recording, or a damaged one.
type BadError struct {
	Offset int64 // in bytes, of the frame
	Reason string
}

func (e *BadError) Error() string { return fmt.Sprintf("at byte %d: %s", e.Offset, e.Reason) }

// TornError is the error at the end of a recording that did not end well. All records before it are good.
type TornError struct {
	Offset int64 // in bytes, of the end of the last whole record
}

func (e *TornError) Error() string {
	return fmt.Sprintf("at byte %d: the recording ends without its end: the recorder was killed, or the file was cut", e.Offset)
}

// Reader reads a recording. One goroutine at a time may use it.
type Reader struct {
	Header Header

	in     *bufio.Reader
	at     int64 // bytes that were read
	offset int64 // of the last frame
	last   time.Duration
	ended  bool
	sum    uint32 // of the present frame
}

// NewReader reads the version and the header. It returns a BadError for a file that is no recording
// of this version.
func NewReader(in io.Reader) (*Reader, error) {
	r := &Reader{in: bufio.NewReader(in)}
	line, err := r.in.Peek(maxVersionLine)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	rest, isOne := strings.CutPrefix(string(line), magic)
	number, _, whole := strings.Cut(rest, "\n")
	if version, err := strconv.Atoi(number); !isOne || !whole || err != nil {
		return nil, &BadError{0, "this is no recording of \"relay record\""}
	} else if version != Version {
		return nil, &BadError{0, fmt.Sprintf("the recording has version %d of the format, and this relay reads version %d: use the relay that recorded it", version, Version)}
	}
	n, err := r.in.Discard(len(magic) + len(number) + 1)
	r.at = int64(n)
	if err != nil {
		return nil, err
	}
	first, err := r.frame()
	if torn := (*TornError)(nil); errors.As(err, &torn) || errors.Is(err, io.EOF) {
		return nil, &BadError{r.offset, "the recording has no whole header"}
	} else if err != nil {
		return nil, err
	}
	if first.Kind != header {
		return nil, &BadError{r.offset, "the recording does not begin with a header"}
	}
	if err := json.Unmarshal(first.Data, &r.Header); err != nil {
		return nil, &BadError{r.offset, "the header does not decode: " + err.Error()}
	}
	return r, nil
}

// Offset returns where the last record begins, in bytes.
func (r *Reader) Offset() int64 { return r.offset }

// Next returns the next record, whose data is the caller's. At the end it returns io.EOF, or a
// TornError when the recording did not end well. A damaged record is a BadError.
func (r *Reader) Next() (Record, error) {
	rec, err := r.frame()
	switch {
	case err != nil:
		return Record{}, err
	case rec.Kind == header:
		return Record{}, &BadError{r.offset, "the recording has a second header"}
	}
	r.ended = rec.Kind == End
	return rec, nil
}

func (r *Reader) frame() (rec Record, err error) {
	r.offset, r.sum = r.at, 0
	kind, err := r.ReadByte()
	switch {
	case errors.Is(err, io.EOF) && r.ended:
		return rec, io.EOF
	case err != nil:
		return rec, r.cut(err)
	case r.ended:
		return rec, &BadError{r.offset, "something follows the end of the recording"}
	}
	rec.Kind, rec.Delta = Kind(kind&^delta), kind&delta != 0
	most := rec.Kind.limit()
	if most == 0 {
		return rec, &BadError{r.offset, fmt.Sprintf("there is no kind of record 0x%02x", kind)}
	}
	micros, err := binary.ReadUvarint(r)
	if err != nil {
		return rec, r.cut(err)
	}
	length, err := binary.ReadUvarint(r)
	if err != nil {
		return rec, r.cut(err)
	}
	if micros > uint64(maxTime/time.Microsecond) {
		return rec, &BadError{r.offset, "the time of the record is beyond ten years"}
	}
	if rec.At = time.Duration(micros) * time.Microsecond; rec.At < r.last {
		return rec, &BadError{r.offset, "the record is older than the one before it"}
	}
	if length > uint64(most) {
		return rec, &BadError{r.offset, fmt.Sprintf("the record has %d bytes, and %d are the most", length, most)}
	}
	if rec.Data, err = r.data(int64(length)); err != nil {
		return rec, r.cut(err)
	}
	sum := r.sum
	want, err := r.data(crc32.Size)
	if err != nil {
		return rec, r.cut(err)
	}
	if binary.LittleEndian.Uint32(want) != sum {
		return rec, &BadError{r.offset, "the record is damaged: its checksum differs"}
	}
	r.last = rec.At
	return rec, nil
}

// cut returns the error of a frame that is not whole.
func (r *Reader) cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &TornError{r.offset}
	}
	if r.at-r.offset > binary.MaxVarintLen64 && r.at-r.offset < maxFrame { // binary.ReadUvarint: overflow
		return &BadError{r.offset, "a number of the record is too large"}
	}
	return err
}

// ReadByte implements io.ByteReader.
func (r *Reader) ReadByte() (byte, error) {
	b, err := r.in.ReadByte()
	if err == nil {
		r.at++
		r.sum = crc32.Update(r.sum, table, []byte{b})
	}
	return b, err
}

// data reads n bytes. It makes no more room than there are bytes.
func (r *Reader) data(n int64) ([]byte, error) {
	var b bytes.Buffer
	got, err := io.CopyN(&b, r.in, n)
	r.at += got
	r.sum = crc32.Update(r.sum, table, b.Bytes())
	return b.Bytes(), err
}
