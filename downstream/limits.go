package downstream

import (
	"cmp"
	"sync"

	"google.golang.org/grpc/codes"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/refusal"
	"meshrelay/downstream/subscription"
)

// Limits limit clients. Server.Reload can replace them. A zero value means the default. Those that admit.Limits does
// not have are constants, except in tests.
type Limits struct {
	admit.Limits
	// MaxNodeBytes bounds the encoded node of a first request, and MaxTypesPerClient the types of a stream.
	MaxNodeBytes, MaxTypesPerClient int
	// MaxViewsPerPeer bounds the views of one peer: the combinations of a configured view, a cluster and a revision.
	MaxViewsPerPeer int
	// MaxNamesPerClient, MaxNamesPerPeer and MaxNames bound the resource names to which one stream, one peer
	// and all streams subscribe. The others bound the bytes of these names.
	MaxNamesPerClient, MaxNameBytesPerClient int
	MaxNamesPerPeer, MaxNameBytesPerPeer     int
	MaxNames, MaxNameBytes                   int
	// MaxVersionBytes bounds the initial_resource_versions that the relay keeps for all streams until it has
	// compared them. One peer may have three quarters of it.
	MaxVersionBytes int
}

// complete returns l with its defaults.
func (l Limits) complete() *Limits {
	l.Complete()
	l.MaxNodeBytes = cmp.Or(l.MaxNodeBytes, 256<<10)
	l.MaxTypesPerClient = cmp.Or(l.MaxTypesPerClient, 256)
	l.MaxViewsPerPeer = cmp.Or(l.MaxViewsPerPeer, maxViews/4)
	l.MaxNamesPerClient = cmp.Or(l.MaxNamesPerClient, 65_536)
	l.MaxNameBytesPerClient = cmp.Or(l.MaxNameBytesPerClient, 8<<20)
	l.MaxNamesPerPeer = cmp.Or(l.MaxNamesPerPeer, 262_144)
	l.MaxNameBytesPerPeer = cmp.Or(l.MaxNameBytesPerPeer, 32<<20)
	l.MaxNames = cmp.Or(l.MaxNames, 524_288)
	l.MaxNameBytes = cmp.Or(l.MaxNameBytes, 64<<20)
	l.MaxVersionBytes = cmp.Or(l.MaxVersionBytes, 128<<20)
	return &l
}

// usage counts the names and versions that the relay keeps for the streams of all peers, and of each.
type usage struct {
	mu   sync.Mutex // guards kept, and Peer.Kept
	kept subscription.Usage
}

// keep replaces the usage was of a stream of p by is. If the peer or all peers together would then exceed a limit, keep
// changes nothing and returns an error.
func (u *usage) keep(p *admit.Peer, was, is subscription.Usage, l *Limits) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	of, all := p.Kept.Changed(was, is), u.kept.Changed(was, is)
	for _, b := range []struct {
		grown    bool
		of, most int
		what     string
		why      refusal.Reason
	}{
		{is.Names > was.Names, of.Names, l.MaxNamesPerPeer, "resource names of " + p.Name, refusal.Names},
		{is.Names > was.Names, all.Names, l.MaxNames, "resource names of all clients", refusal.Names},
		{is.NameBytes > was.NameBytes, of.NameBytes, l.MaxNameBytesPerPeer, "bytes of resource names of " + p.Name, refusal.Names},
		{is.NameBytes > was.NameBytes, all.NameBytes, l.MaxNameBytes, "bytes of resource names of all clients", refusal.Names},
		{is.Versions > was.Versions, of.Versions, l.MaxVersionBytes * 3 / 4, "bytes of resource versions of " + p.Name, refusal.Versions},
		{is.Versions > was.Versions, all.Versions, l.MaxVersionBytes, "bytes of resource versions that wait to be compared", refusal.Versions},
	} {
		if b.grown && b.of > b.most {
			return refusal.New(b.why, codes.ResourceExhausted, "more than %d %s; try again later", b.most, b.what)
		}
	}
	p.Kept, u.kept = of, all
	return nil
}
