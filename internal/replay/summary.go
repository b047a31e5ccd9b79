package replay

import (
	"errors"
	"fmt"
	"io"
	"time"

	"meshrelay/internal/recording"
)

// Summary tells what is in a recording.
type Summary struct {
	Header recording.Header
	// Address and Delta are those of the last stream that brought a response.
	Address string
	Delta   bool
	// Server is what the server told of itself last.
	Server    recording.Peer
	Streams   int
	Responses int
	// Types has, for each type that was answered, the number of its resources at the end.
	Types map[string]int
	// First is the time of the first response, Last that of the last one.
	First, Last time.Duration
	// Torn is how the recording ended, nil when it ended well.
	Torn *recording.TornError
}

// Resources returns how many resources there are at the end.
func (s Summary) Resources() (n int) {
	for _, count := range s.Types {
		n += count
	}
	return n
}

// Inspect reads a recording to its end. A recording without responses, and a damaged one, are errors.
func Inspect(r *recording.Reader) (Summary, error) {
	s := Summary{Header: r.Header, Types: map[string]int{}}
	f := newFold()
	address, opened := "", false
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) || errors.As(err, &s.Torn) {
			break
		}
		if err != nil {
			return s, err
		}
		if _, err := f.step(rec); err != nil {
			return s, &recording.BadError{Offset: r.Offset(), Reason: err.Error()}
		}
		switch rec.Kind {
		case recording.Opened:
			address, opened = string(rec.Data), true
		case recording.Server:
			if s.Server, err = rec.Peer(); err != nil {
				return s, &recording.BadError{Offset: r.Offset(), Reason: err.Error()}
			}
		case recording.Response:
			if s.Responses++; s.Responses == 1 {
				s.First = rec.At
			}
			if opened {
				s.Streams, opened = s.Streams+1, false
			}
			s.Last, s.Address, s.Delta = rec.At, address, rec.Delta
		}
	}
	f.finish()
	for url, t := range f.types {
		s.Types[url] = len(t.resources)
	}
	if s.Responses == 0 {
		return s, fmt.Errorf("it has no response of upstream %s", s.Header.Upstream)
	}
	return s, nil
}
