// Package recording reads and writes recordings: what went over the streams of an upstream, with
// times, in one file that another relay can be served from.
//
// It owns the format and what a redacted recording leaves out. It must not know files, connections,
// nor who reads a recording.
//
// A recording begins with a line that has the version of the format. Frames follow: a byte for the
// kind, the microseconds since the start, the length of the data, the data, and a CRC-32C of all
// that. Both numbers are varints. The first frame is the header. The last one of a recording that
// ended well is End.
package recording

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"meshrelay/internal/wire"
)

// Version is the version of the format.
const Version = 1

const (
	magic = "meshrelay recording "
	// maxVersionLine bounds the first line.
	maxVersionLine = len(magic) + 8
	// maxText bounds, in bytes, the data of all records but requests and responses.
	maxText = 64 << 10
	// maxMessage bounds the data of requests and responses: gRPC can frame no more.
	maxMessage = 1<<31 - 1
	// maxFrame bounds what a frame has in addition to its data.
	maxFrame = 1 + 2*binary.MaxVarintLen64 + crc32.Size
	// maxTime bounds the time of a record, so that no sum of times overflows.
	maxTime = 10 * 365 * 24 * time.Hour
)

var table = crc32.MakeTable(crc32.Castagnoli)

// Header describes a recording.
type Header struct {
	Upstream string `json:"upstream"`
	// Protocol is that of the config: auto, sotw or delta. Each Opened has the one that was spoken.
	Protocol string    `json:"protocol"`
	Started  time.Time `json:"started"`
	// Relay is the version of the relay that recorded.
	Relay    string `json:"relay"`
	Redacted bool   `json:"redacted"`
}

// Kind is the kind of a record.
type Kind byte

// The kinds of records.
const (
	header   Kind = 'H'
	Opened   Kind = 'O' // a stream was opened; the data is its address
	Server   Kind = 'S' // what the server told of itself: a Peer as JSON
	Request  Kind = 'Q' // an encoded DiscoveryRequest or DeltaDiscoveryRequest
	Response Kind = 'R' // an encoded DiscoveryResponse or DeltaDiscoveryResponse
	Closed   Kind = 'C' // the stream has ended; the data is why
	End      Kind = 'E' // the recording ended well; the data is why
)

// delta is added to the byte of a kind for streams of the delta protocol.
const delta = 0x80

// Peer is the data of a record of the kind Server.
type Peer struct {
	Relay bool   `json:"relay"`
	Name  string `json:"name,omitempty"`
}

// Record is one thing that happened.
type Record struct {
	Kind Kind
	// Delta: the stream is one of the delta protocol.
	Delta bool
	// At is the time since the start.
	At   time.Duration
	Data []byte
}

// limit returns the most bytes of data of a kind, 0 for a kind that is none.
func (k Kind) limit() int {
	switch k {
	case Request, Response:
		return maxMessage
	case header, Opened, Server, Closed, End:
		return maxText
	}
	return 0
}

// ErrFull is the error of a Writer when a record has no room.
var ErrFull = errors.New("the recording is full")

// Writer writes a recording. One goroutine at a time may use it.
type Writer struct {
	w           io.Writer
	limit, size int64
	err         error // of the first failure; nothing is written after it
}

// NewWriter begins a recording of at most limit bytes.
func NewWriter(w io.Writer, h Header, limit int64) (*Writer, error) {
	data, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	wr := &Writer{w: w, limit: limit}
	if err := wr.write(fmt.Appendf(nil, "%s%d\n", magic, Version)); err != nil {
		return nil, err
	}
	return wr, wr.Add(Record{Kind: header, Data: data})
}

// Size returns how many bytes were written.
func (w *Writer) Size() int64 { return w.size }

// Add writes a record in one call of the writer. It returns ErrFull, and writes nothing, when the
// record and an End have no room. After another error nothing more is written.
func (w *Writer) Add(r Record) error {
	if len(r.Data) > r.Kind.limit() {
		r.Data = r.Data[:r.Kind.limit()] // a text: no message can be larger
	}
	if r.Kind != End && w.size+int64(len(r.Data))+maxFrame+maxText > w.limit {
		return ErrFull
	}
	return w.write(appendFrame(make([]byte, 0, len(r.Data)+maxFrame), r))
}

func (w *Writer) write(b []byte) error {
	if w.err != nil {
		return w.err
	}
	n, err := w.w.Write(b)
	w.size += int64(n)
	w.err = err
	return err
}

func appendFrame(b []byte, r Record) []byte {
	kind := byte(r.Kind)
	if r.Delta {
		kind |= delta
	}
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(max(r.At, 0).Microseconds()))
	b = binary.AppendUvarint(b, uint64(len(r.Data)))
	b = append(b, r.Data...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, table))
}

// Peer returns the data of a record of the kind Server.
func (r Record) Peer() (p Peer, err error) {
	if err = json.Unmarshal(r.Data, &p); err != nil {
		err = fmt.Errorf("the description of the server does not decode: %w", err)
	}
	return p, err
}

// TypeURL returns the type of a response, empty where there is none.
func TypeURL(r Record) string { return string(wire.Last(r.Data, 4)) }
