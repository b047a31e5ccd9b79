package local

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/proto"

	"meshrelay/state/local/statepb"
)

// A log is a head and then frames. The head is written twice, in turns, so that a torn write
// leaves the other one. It tells up to where the log was durable before the last batch was
// appended: what is broken up to there is damage, what is broken behind it is a torn batch.
//
// A frame has a mark, the length of its payload, and a checksum that also covers its place and
// the salt of the log, so that nothing else passes for a frame: no rest of an earlier write,
// and no content of a source. All numbers are little-endian. A payload is the length of a
// statepb.Entry, the entry, and, of a change, the encoded record, which a reader need not decode.
const (
	// formatVersion is the newest format that this build knows, and writes. Format 1 was that
	// of relay.db.
	formatVersion = 2

	headMark = "meshlog\n"
	slotLen  = 512 // a sector: it is written whole
	slotUsed = 48
	headLen  = 2 * slotLen

	frameMark    = "\xf5\xfe\x8f\xa1" // no valid UTF-8
	frameHeadLen = 16
	// maxPayload bounds an entry.
	maxPayload = 1 << 30

	windowLen = 1 << 18
)

var (
	errNewer   = errors.New("the file is of a newer version of the relay")
	errCorrupt = errors.New("the file is damaged")
)

func corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errCorrupt}, args...)...)
}

// head is what a log tells of itself.
type head struct {
	salt     uint64
	sequence uint64
	durable  int64
}

// encode returns a slot of the head.
func (h head) encode() []byte {
	b := make([]byte, slotLen)
	copy(b, headMark)
	binary.LittleEndian.PutUint32(b[8:], formatVersion)
	binary.LittleEndian.PutUint64(b[16:], h.salt)
	binary.LittleEndian.PutUint64(b[24:], h.sequence)
	binary.LittleEndian.PutUint64(b[32:], uint64(h.durable))
	binary.LittleEndian.PutUint64(b[40:], xxh3.Hash(b[:40]))
	return b
}

// readHead returns the newer one of the two slots of a head.
func readHead(r io.ReaderAt) (h head, err error) {
	found := false
	for i := range int64(2) {
		b := make([]byte, slotUsed)
		if _, err := r.ReadAt(b, i*slotLen); err != nil || string(b[:8]) != headMark || xxh3.Hash(b[:40]) != binary.LittleEndian.Uint64(b[40:]) {
			continue
		}
		if v := binary.LittleEndian.Uint32(b[8:]); v > formatVersion {
			return head{}, fmt.Errorf("%w: it has format %d, and this version knows %d", errNewer, v, formatVersion)
		}
		next := head{binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:]), int64(binary.LittleEndian.Uint64(b[32:]))}
		if !found || next.sequence > h.sequence {
			h, found = next, true
		}
	}
	if !found {
		return head{}, corruptf("it does not begin as a state file does")
	}
	return h, nil
}

// builder appends frames to a log, in large writes.
type builder struct {
	to   io.WriterAt
	salt uint64
	at   int64 // of the next write
	buf  []byte
}

// newLog begins a log.
func newLog(to io.WriterAt) *builder {
	var salt [8]byte
	_, _ = rand.Read(salt[:]) // it never fails
	return &builder{to: to, salt: binary.LittleEndian.Uint64(salt[:]), at: headLen}
}

// end is where the next frame begins.
func (b *builder) end() int64 { return b.at + int64(len(b.buf)) }

// add appends an entry, and the record of a change. It returns the size of the frame.
func (b *builder) add(e *statepb.Entry, record []byte) (int, error) {
	start := len(b.buf)
	buf, err := proto.MarshalOptions{}.MarshalAppend(append(b.buf, make([]byte, frameHeadLen+4)...), e)
	if err != nil {
		return 0, err
	}
	binary.LittleEndian.PutUint32(buf[start+frameHeadLen:], uint32(len(buf)-start-frameHeadLen-4))
	b.buf = append(buf, record...)
	return b.seal(start)
}

// copyFrame appends what the frame at a place of another log holds. It returns the size of the
// frame.
func (b *builder) copyFrame(from *reader, at int64) (int, error) {
	payload := from.payload(at)
	if payload == nil {
		return 0, corruptf("byte %d is not the begin of an entry", at)
	}
	start := len(b.buf)
	b.buf = append(append(b.buf, make([]byte, frameHeadLen)...), payload...)
	return b.seal(start)
}

func (b *builder) seal(start int) (int, error) {
	frame := b.buf[start:]
	if len(frame) > maxPayload {
		return 0, fmt.Errorf("an entry of %d bytes is too large", len(frame))
	}
	copy(frame, frameMark)
	binary.LittleEndian.PutUint32(frame[4:], uint32(len(frame)-frameHeadLen))
	binary.LittleEndian.PutUint64(frame[8:], xxh3.HashSeed(frame[frameHeadLen:], b.salt^uint64(b.at+int64(start))))
	if len(b.buf) < 1<<20 {
		return len(frame), nil
	}
	return len(frame), b.flush()
}

func (b *builder) flush() error {
	if _, err := b.to.WriteAt(b.buf, b.at); err != nil {
		return err
	}
	b.at, b.buf = b.at+int64(len(b.buf)), b.buf[:0]
	return nil
}

// finish completes a log that newLog has begun: all of it counts as durable.
func (b *builder) finish() error {
	if err := b.flush(); err != nil {
		return err
	}
	_, err := b.to.WriteAt(append(head{b.salt, 1, b.at}.encode(), make([]byte, slotLen)...), 0)
	return err
}

// reader reads the frames of a log. One goroutine uses it.
type reader struct {
	from io.ReaderAt
	size int64
	head head

	window []byte
	at     int64 // of the window
}

// newReader begins to read a log. size bounds what is read.
func newReader(from io.ReaderAt, size int64) (*reader, error) {
	h, err := readHead(from)
	return &reader{from: from, size: size, head: h}, err
}

// bytes returns a part of the file, nil when it can not be read. It is valid until the next
// call.
func (r *reader) bytes(at int64, n int) []byte {
	if at < 0 || at+int64(n) > r.size {
		return nil
	}
	if at < r.at || at+int64(n) > r.at+int64(len(r.window)) {
		want := int(min(max(int64(n), windowLen), r.size-at))
		if cap(r.window) < want || cap(r.window) > 4*max(want, windowLen) {
			r.window = make([]byte, want)
		}
		r.window, r.at = r.window[:want], at
		if _, err := r.from.ReadAt(r.window, at); err != nil {
			r.window = r.window[:0]
			return nil
		}
	}
	return r.window[at-r.at:][:n]
}

// payload returns what the frame at a place holds, nil when there is no whole one.
func (r *reader) payload(at int64) []byte {
	b := r.bytes(at, frameHeadLen)
	if b == nil || string(b[:4]) != frameMark {
		return nil
	}
	n, sum := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])
	if n > maxPayload {
		return nil
	}
	b = r.bytes(at+frameHeadLen, int(n))
	if b == nil || xxh3.HashSeed(b, r.head.salt^uint64(at)) != sum {
		return nil
	}
	return b
}

// entry returns the entry at a place, the record behind it, which is valid until the next call,
// and the size of both with the head of the frame, 0 when there is none.
func (r *reader) entry(at int64) (e *statepb.Entry, record []byte, size int, err error) {
	b := r.payload(at)
	if b == nil {
		return nil, nil, 0, corruptf("byte %d is not the begin of an entry", at)
	}
	size = frameHeadLen + len(b)
	n := uint32(0)
	if len(b) >= 4 {
		n, b = binary.LittleEndian.Uint32(b), b[4:]
	}
	e = &statepb.Entry{}
	if uint64(n) > uint64(len(b)) {
		return e, nil, size, corruptf("the entry at byte %d is cut off", at)
	}
	if err := proto.Unmarshal(b[:n], e); err != nil {
		return e, nil, size, corruptf("the entry at byte %d: %v", at, err)
	}
	return e, b[n:], size, nil
}

// after returns the place of the first whole frame that begins at a place or behind it, the
// end of the file when there is none.
func (r *reader) after(at int64) int64 {
	for at < r.size {
		b := r.bytes(at, int(min(windowLen, r.size-at)))
		i := bytes.Index(b, []byte(frameMark))
		switch {
		case b == nil:
			at += windowLen // a bad part of the disk
		case i >= 0 && r.payload(at+int64(i)) != nil:
			return at + int64(i)
		case i >= 0:
			at += int64(i) + 1
		default:
			at += int64(max(len(b)-len(frameMark)+1, 1))
		}
	}
	return r.size
}

// memory is a log in memory.
type memory []byte

func (m *memory) WriteAt(p []byte, at int64) (int, error) {
	if end := int(at) + len(p); end > len(*m) {
		*m = append(*m, make([]byte, end-len(*m))...)
	}
	return copy((*m)[at:], p), nil
}
