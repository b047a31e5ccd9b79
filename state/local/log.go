package local

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"
)

// A log is a head and then frames. The head tells up to where the log was durable before the last
// batch was appended: what is broken up to there is damage, what is broken behind it is a torn
// batch. It is shorter than a sector, which a disk writes whole.
//
// A frame is the change of a key, with the record and the encoded resource, both empty when the
// key is gone, or, without a key, the commit that ends a batch. Numbers are little-endian.
const (
	// formatVersion is the newest format that this build knows, and writes. Format 1 was that
	// of relay.db.
	formatVersion = 2

	headMark = "meshlog\n" // then the version, 4 bytes of nothing, durable, and a checksum
	headLen  = 32

	frameHeadLen = 28 // a checksum of the rest, three lengths, and the digest
	maxFrame     = 1 << 30

	windowLen = 1 << 16 // a restart has one for each upstream, or several
	bufferLen = 1 << 20
)

var (
	errNewer   = errors.New("the file is of a newer version of the relay")
	errCorrupt = errors.New("the file is damaged")

	little = binary.LittleEndian
)

func corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errCorrupt}, args...)...)
}

func encodeHead(durable int64) []byte {
	b := append(make([]byte, 0, headLen), headMark...)
	b = little.AppendUint64(b, formatVersion)
	b = little.AppendUint64(b, uint64(durable))
	return little.AppendUint64(b, xxh3.Hash(b))
}

func readHead(r io.ReaderAt) (durable int64, err error) {
	b := make([]byte, headLen)
	if _, err := r.ReadAt(b, 0); err != nil || string(b[:8]) != headMark || xxh3.Hash(b[:24]) != little.Uint64(b[24:]) {
		return 0, corruptf("it does not begin as a state file does")
	}
	if v := little.Uint32(b[8:]); v > formatVersion {
		return 0, fmt.Errorf("%w: it has format %d, and this version knows %d", errNewer, v, formatVersion)
	}
	return int64(little.Uint64(b[16:])), nil
}

// frame is one entry of a log.
type frame struct {
	key, record, data []byte
	digest            uint64 // of the content, without what only the protocol of the source gives
	// sum is the checksum, and size includes the head.
	sum  uint64
	size int
}

// appendFrame appends a frame, and returns its checksum.
func appendFrame(b []byte, key, record, data []byte, digest uint64) (out []byte, sum uint64) {
	start := len(b)
	b = append(b, make([]byte, 8)...)
	for _, part := range [][]byte{key, record, data} {
		b = little.AppendUint32(b, uint32(len(part)))
	}
	b = little.AppendUint64(b, digest)
	b = append(append(append(b, key...), record...), data...)
	sum = xxh3.Hash(b[start+8:])
	little.PutUint64(b[start:], sum)
	return b, sum
}

// reader reads the frames of a log. One goroutine uses it.
type reader struct {
	from   io.ReaderAt
	size   int64 // how much is read
	window []byte
	at     int64 // of the window
}

// bytes returns a part of the file, nil when it can not be read. It is valid until the next call.
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

// frame returns the frame at a place. Its slices are valid until the next call. Of a damaged frame
// it returns the size that it seems to have, 0 when that can not be.
func (r *reader) frame(at int64) (f frame, err error) {
	h := r.bytes(at, frameHeadLen)
	if h == nil {
		return f, notAnEntry(at)
	}
	key, record, data := uint64(little.Uint32(h[8:])), uint64(little.Uint32(h[12:])), uint64(little.Uint32(h[16:]))
	size := frameHeadLen + key + record + data
	if size > maxFrame || int64(size) > r.size-at {
		return f, notAnEntry(at)
	}
	b := r.bytes(at, int(size))
	if b == nil || xxh3.Hash(b[8:]) != little.Uint64(b) {
		return frame{size: int(size)}, notAnEntry(at)
	}
	f = frame{digest: little.Uint64(b[20:]), sum: little.Uint64(b), size: int(size)}
	b = b[frameHeadLen:]
	f.key, f.record, f.data = b[:key], b[key:key+record], b[key+record:]
	return f, nil
}

func notAnEntry(at int64) error { return corruptf("byte %d is not the begin of an entry", at) }

// memory is a log in memory.
type memory []byte

func (m *memory) WriteAt(p []byte, at int64) (int, error) {
	if end := int(at) + len(p); end > len(*m) {
		*m = append(*m, make([]byte, end-len(*m))...)
	}
	return copy((*m)[at:], p), nil
}

func (m memory) reader() io.ReaderAt { return bytes.NewReader(m) }
