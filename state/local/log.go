package local

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"

	"meshrelay/state"
)

// A log is a head and then frames. The head has the offset up to which the log was durable before the
// last batch was appended. A broken frame before that offset is damage, one behind it is a torn batch.
// The head is shorter than a sector, which a disk writes whole.
//
// A frame with a key is a change: a record and the encoded resource, both empty for a removal. A frame
// without a key is a commit, which ends a batch. Numbers are little-endian.
const (
	// FormatVersion is the format that this build reads and writes. A later format keeps the head.
	FormatVersion = 1

	headMark = "meshlog\n" // then the format, the durable offset, and a checksum, each of 8 bytes
	headLen  = 32

	frameHeadLen = 28 // a checksum of the rest, three lengths, and the digest
	maxFrame     = 1 << 30

	windowLen = 1 << 16 // bytes; a restart reads each upstream in one window at least
)

var (
	errCorrupt = errors.New("the file is damaged")
	errChanged = corruptf("it was removed, replaced or cut off while it was in use")

	little = binary.LittleEndian
)

func corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errCorrupt}, args...)...)
}

func encodeHead(durable int64) []byte {
	b := append(make([]byte, 0, headLen), headMark...)
	b = little.AppendUint64(b, FormatVersion)
	b = little.AppendUint64(b, uint64(durable))
	return little.AppendUint64(b, xxh3.Hash(b))
}

// readHead returns the durable offset. It fails with state.ErrLaterFormat or errCorrupt.
func readHead(r io.ReaderAt) (durable int64, err error) {
	b := make([]byte, headLen)
	if _, err := r.ReadAt(b, 0); err != nil || string(b[:8]) != headMark || xxh3.Hash(b[:24]) != little.Uint64(b[24:]) {
		return 0, corruptf("it has no valid head")
	}
	if v := little.Uint64(b[8:]); v > FormatVersion {
		return 0, fmt.Errorf("%w: it has format %d, and this release reads format %d: start the release that wrote it, or set state.dir to another directory",
			state.ErrLaterFormat, v, FormatVersion)
	}
	return int64(little.Uint64(b[16:])), nil
}

// frame is one entry of a log. Its slices are parts of a reader's window.
type frame struct {
	key, record, data []byte
	digest            uint64 // of the content, without the version that the source gave
	sum               uint64 // the checksum
	size              int    // bytes, with the head
}

// removal reports whether the frame removes its key.
func (f *frame) removal() bool { return len(f.record)+len(f.data) == 0 }

// place returns the place of the frame at an offset, or of none when the frame is a removal.
func (f *frame) place(at int64) place {
	if f.removal() {
		return place{}
	}
	return place{at, f.size, f.sum, f.digest}
}

// appendFrame appends the encoding of a frame, and sets its checksum and size.
func appendFrame(b []byte, f *frame) []byte {
	start := len(b)
	b = append(b, make([]byte, 8)...)
	for _, part := range [][]byte{f.key, f.record, f.data} {
		b = little.AppendUint32(b, uint32(len(part)))
	}
	b = little.AppendUint64(b, f.digest)
	b = append(append(append(b, f.key...), f.record...), f.data...)
	f.sum, f.size = xxh3.Hash(b[start+8:]), len(b)-start
	little.PutUint64(b[start:], f.sum)
	return b
}

// reader reads the frames of a log. One goroutine uses it.
type reader struct {
	from   io.ReaderAt
	size   int64 // bytes of the log that are read
	window []byte
	at     int64 // of the window
}

// bytes returns a part of the file, nil after an error. It is valid until the next call.
func (r *reader) bytes(at int64, n int) []byte {
	if at+int64(n) > r.size {
		return nil
	}
	if at < r.at || at+int64(n) > r.at+int64(len(r.window)) {
		want := int(min(max(int64(n), windowLen), r.size-at))
		if cap(r.window) < want {
			r.window = make([]byte, want)
		}
		r.window, r.at = r.window[:want], at
		if _, err := r.from.ReadAt(r.window, at); err != nil {
			r.window = nil
			return nil
		}
	}
	return r.window[at-r.at:][:n]
}

// frame returns the frame at an offset. It is valid until the next call. With an error it returns only
// the size in the head of the frame, 0 when that is out of range.
func (r *reader) frame(at int64) (f frame, err error) {
	h := r.bytes(at, frameHeadLen)
	if h == nil {
		return f, invalidEntry(at)
	}
	key, record, data := uint64(little.Uint32(h[8:])), uint64(little.Uint32(h[12:])), uint64(little.Uint32(h[16:]))
	size := frameHeadLen + key + record + data
	if size > maxFrame || int64(size) > r.size-at {
		return f, invalidEntry(at)
	}
	b := r.bytes(at, int(size))
	if b == nil || xxh3.Hash(b[8:]) != little.Uint64(b) {
		return frame{size: int(size)}, invalidEntry(at)
	}
	f = frame{digest: little.Uint64(b[20:]), sum: little.Uint64(b), size: int(size)}
	b = b[frameHeadLen:]
	f.key, f.record, f.data = b[:key], b[key:key+record], b[key+record:]
	return f, nil
}

func invalidEntry(at int64) error { return corruptf("there is no valid entry at byte %d", at) }
