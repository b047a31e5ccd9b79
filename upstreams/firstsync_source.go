package upstreams

import (
	"errors"
	"time"

	"meshrelay/adsclient"
)

// acquaintance is what an XDS source knows of the server that it is connected to, as far as it
// matters for who waits for whom.
type acquaintance struct {
	// holds: the server is a relay that holds its clients, this one among them.
	holds bool
	// sameName: it is a relay of this one's own name.
	sameName bool
}

// met implements adsclient.Config.Met.
func (x *XDS) met(p adsclient.Peer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.server = acquaintance{holds: p.Holds}
}

// follow brings what is known to a change of the connection.
func (a *acquaintance) follow(s adsclient.State) {
	var same *adsclient.SameNameError
	switch s.Phase {
	case adsclient.Streaming: // what it has told is of this stream
	case adsclient.Connected:
		*a = acquaintance{}
	case adsclient.Connecting:
		a.holds = false
	case adsclient.Disconnected, adsclient.Denied:
		*a = acquaintance{sameName: errors.As(s.Err, &same)}
	}
}

// mayWait implements Source.
func (x *XDS) mayWait() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.server.sameName:
		return becauseSameName
	case x.server.holds:
		return becauseHolds
	}
	return ""
}

// mayWait implements Source.
func (f *File) mayWait() string { return "" }

// serveWithout has clients wait for the source no longer, until it has synced.
func (g *gate) serveWithout(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.without = now.UTC()
}

// servedWithout reports whether serveWithout was called and the source has not synced since.
func (g *gate) servedWithout() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.without.IsZero()
}
