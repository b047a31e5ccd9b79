package downstream

import "sync/atomic"

// inflow is what comes on an open stream of a connection.
type inflow struct {
	// The goroutine that reads uses these: what has come of the next request.
	head [5]byte
	have uint8 // bytes of head
	left uint32
	// grant is that of the request, nil when it needs none.
	grant *grant

	claimed bool // guarded by meter.mu
	// came counts the requests that have begun, and the end of the client's side.
	came atomic.Uint64
	// wake is called when there is more. It must not block.
	wake atomic.Pointer[func()]
}

// note counts a request that begins, or the end of the client's side.
func (f *inflow) note() {
	f.came.Add(1)
	if wake := f.wake.Load(); wake != nil {
		(*wake)()
	}
}

// claim returns what comes on a stream that has begun, nil when that can not be told. Each stream claims
// once.
//
// gRPC does not tell which stream of HTTP/2 its own is. When as many have claimed as were opened, all
// others have claimed before; so the one that nobody has, if there is only one, is the caller's.
func (m *meter) claim() (mine *inflow) {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.claims++; m.claims != m.opens {
		return nil
	}
	for _, f := range m.open {
		switch {
		case f.claimed:
		case mine != nil:
			return nil
		default:
			mine = f
		}
	}
	if mine != nil {
		mine.claimed = true
	}
	return mine
}
