package main

import (
	"sync"

	"google.golang.org/grpc/mem"

	"meshrelay/bench/internal/wire"
)

const (
	// leastShared is the least message, in bytes, that is worth a comparison.
	leastShared = 64 << 10
	// mostShared is how many contents are kept for others at most.
	mostShared = 128
)

// shares keeps equal contents once: clients of one server are sent the same resources, and thousands of
// copies would make the bench's own memory the largest part of a measurement. It may be used concurrently.
type shares struct {
	mu  sync.Mutex
	all [][]byte // the resources of a message; nobody writes into them
}

// of returns the resources of a message as a message of their own, and frees the other, if another client
// was sent the same or may be. Else it returns the message.
func (s *shares) of(data mem.BufferSlice, h wire.Head) mem.BufferSlice {
	if h.To-h.From < leastShared || h.Removed > 0 {
		return data
	}
	s.mu.Lock()
	all := s.all
	s.mu.Unlock()
	for _, one := range all {
		if len(one) == h.To-h.From && wire.Equal(data, h.From, one) {
			data.Free()
			return mem.BufferSlice{mem.SliceBuffer(one)}
		}
	}
	if len(all) == mostShared {
		return data
	}
	one := wire.Copy(data, h.From, h.To)
	data.Free()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) < mostShared {
		s.all = append(s.all, one)
	}
	return mem.BufferSlice{mem.SliceBuffer(one)}
}
