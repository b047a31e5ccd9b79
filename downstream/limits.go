package downstream

import (
	"errors"
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

// complete returns l with its defaults. The error names each negative limit.
func (l Limits) complete() (*Limits, error) {
	return &l, errors.Join(l.Complete(), admit.Complete([]admit.Limit{
		{Name: "MaxNodeBytes", Value: &l.MaxNodeBytes, Default: 256 << 10},
		{Name: "MaxTypesPerClient", Value: &l.MaxTypesPerClient, Default: 256},
		{Name: "MaxViewsPerPeer", Value: &l.MaxViewsPerPeer, Default: maxViews / 4},
		{Name: "MaxNamesPerClient", Value: &l.MaxNamesPerClient, Default: 65_536},
		{Name: "MaxNameBytesPerClient", Value: &l.MaxNameBytesPerClient, Default: 8 << 20},
		{Name: "MaxNamesPerPeer", Value: &l.MaxNamesPerPeer, Default: 262_144},
		{Name: "MaxNameBytesPerPeer", Value: &l.MaxNameBytesPerPeer, Default: 32 << 20},
		{Name: "MaxNames", Value: &l.MaxNames, Default: 524_288},
		{Name: "MaxNameBytes", Value: &l.MaxNameBytes, Default: 64 << 20},
		{Name: "MaxVersionBytes", Value: &l.MaxVersionBytes, Default: 128 << 20},
	}))
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
		{is.Names > was.Names, of.Names, l.MaxNamesPerPeer, "resource names of " + p.Key(), refusal.Names},
		{is.Names > was.Names, all.Names, l.MaxNames, "resource names of all clients", refusal.Names},
		{is.NameBytes > was.NameBytes, of.NameBytes, l.MaxNameBytesPerPeer, "bytes of resource names of " + p.Key(), refusal.Names},
		{is.NameBytes > was.NameBytes, all.NameBytes, l.MaxNameBytes, "bytes of resource names of all clients", refusal.Names},
		{is.Versions > was.Versions, of.Versions, l.MaxVersionBytes * 3 / 4, "bytes of resource versions of " + p.Key(), refusal.Versions},
		{is.Versions > was.Versions, all.Versions, l.MaxVersionBytes, "bytes of resource versions that wait to be compared", refusal.Versions},
	} {
		if b.grown && b.of > b.most {
			return refusal.New(b.why, codes.ResourceExhausted, "more than %d %s; try again later", b.most, b.what)
		}
	}
	p.Kept, u.kept = of, all
	return nil
}
