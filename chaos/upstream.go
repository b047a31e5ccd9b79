package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	// istiodPause and relayPause are how far apart pushes are at least.
	istiodPause = 50 * time.Millisecond
	relayPause  = 10 * time.Millisecond
)

// mood is how an upstream behaves.
type mood struct {
	// refuses, unless it is nil, is what new streams end with.
	refuses error
	// empty has it say to new streams that it has nothing, as an istiod does that was
	// started without its configs.
	empty bool
	// half has it say that of four of five resources.
	half bool
	// withholds is the number of a kind that new requests for are not answered, plus one.
	withholds int
	// silent has the types that are not answered, asked for or not.
	silent silence
	// lies is what is wrong with its responses.
	lies lie
}

// upstream is a server of what a source has: an istiod, which speaks SotW, sends all of a
// kind on each change and knows one API version of each, or something like a relay, which
// speaks delta. A source may have several, which are its replicas.
type upstream struct {
	name    string
	source  *source
	relay   bool
	address string
	never   string // a type that is not answered, in any mood

	mu      sync.Mutex // guards all below
	server  *grpc.Server
	done    chan struct{} // closed when the server has ended
	mood    mood
	moved   chan struct{} // closed when the mood changes
	moods   uint64        // how often it has
	streams map[*session]struct{}
	nonce   int
	acked   *ledger
	// has is the content of a replica that lags behind, by key; nil for a replica that does not.
	// The world's lock guards it.
	has map[int]held
}

// held is what a replica has of a key.
type held struct {
	seq     int
	present bool
	element *anypb.Any
}

// session is one stream of a client.
type session struct {
	// ending stops all sending. The upstream's lock guards it.
	ending bool
	end    chan error               // has room for one
	types  map[string]*subscription // by type URL
	// acked is the last commit that the client has acknowledged, by kind.
	acked map[int]uint64
}

// subscription is one type URL of one session.
type subscription struct {
	typeURL string
	kind    int // -1: one of which there is nothing
	rev     uint64
	moods   uint64
	// holds is, on delta streams, what the client has: by name, with the version.
	holds    map[string]string
	answered bool
}

func newUpstream(name string, s *source, relay bool, address string) *upstream {
	return &upstream{
		name: name, source: s, relay: relay, address: address, moved: make(chan struct{}),
		streams: map[*session]struct{}{}, acked: newLedger(),
	}
}

// start serves on the upstream's address, and stop ends that as a crash would.
func (u *upstream) start() error {
	lis, err := net.Listen("tcp", u.address)
	if err != nil {
		return fmt.Errorf("upstream %s: %w", u.name, err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.address = lis.Addr().String()
	server, done := grpc.NewServer(grpc.MaxRecvMsgSize(64<<20), grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second})), make(chan struct{})
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, u)
	u.server, u.done = server, done
	go func() {
		defer close(done)
		_ = server.Serve(lis) // it ends with stop
	}()
	return nil
}

func (u *upstream) stop() {
	u.mu.Lock()
	server, done := u.server, u.done
	u.server = nil
	u.mu.Unlock()
	if server != nil {
		server.Stop()
		<-done
	}
}

// feel sets how the upstream behaves from now on. All that was asked for is sent again.
func (u *upstream) feel(change func(*mood)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change(&u.mood)
	u.moods++
	close(u.moved)
	u.moved = make(chan struct{})
}

// isNameless reports whether the upstream sends elements without a name.
func (u *upstream) isNameless() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mood.lies == lieUnnamed
}

// lag makes a replica not notice any more what changes, or notice it again.
func (u *upstream) lag(on bool) {
	w := u.source.world
	w.mu.Lock()
	if on {
		u.has = map[int]held{}
		for key, it := range u.source.items {
			u.has[key] = held{it.seq, it.present, it.element}
		}
	} else {
		u.has = nil
	}
	w.mu.Unlock()
	u.feel(func(m *mood) {})
}

// restart ends all streams, and sets how the upstream behaves to those that come then.
func (u *upstream) restart(change func(*mood)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change(&u.mood)
	for s := range u.streams {
		s.ending = true
		select {
		case s.end <- errRestarts:
		default: // it ends already
		}
	}
}

// StreamAggregatedResources implements the ADS service.
func (u *upstream) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	if u.relay {
		return status.Error(codes.Unimplemented, "this upstream speaks delta only")
	}
	requests := make(chan request)
	ended := make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case requests <- request{typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(), nacks: r.GetErrorDetail() != nil}:
			case <-stream.Context().Done():
				ended <- stream.Context().Err()
				return
			}
		}
	}()
	return u.serve(stream, requests, ended, istiodPause, u.sendAll)
}

// DeltaAggregatedResources implements the ADS service.
func (u *upstream) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if !u.relay {
		return status.Error(codes.Unimplemented, "this upstream speaks SotW only")
	}
	if err := u.refusal(); err != nil {
		return err
	}
	if err := stream.SendHeader(metadata.Pairs("x-meshrelay", "delta")); err != nil {
		return err
	}
	requests := make(chan request)
	ended := make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case requests <- request{
				typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(), nacks: r.GetErrorDetail() != nil, holds: r.GetInitialResourceVersions(),
			}:
			case <-stream.Context().Done():
				ended <- stream.Context().Err()
				return
			}
		}
	}()
	return u.serve(stream, requests, ended, relayPause, u.sendDifference)
}

// request is what requests of both protocols have in common.
type request struct {
	typeURL, nonce string
	nacks          bool
	holds          map[string]string
}

// refusal returns what new streams end with.
func (u *upstream) refusal() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mood.refuses
}

// serve answers the requests of one stream, and sends what changes, with a pause after each
// push.
func (u *upstream) serve(stream grpc.ServerStream, requests <-chan request, ended <-chan error, pause time.Duration, send func(grpc.ServerStream, *session, *subscription) error) error {
	s := &session{end: make(chan error, 1), types: map[string]*subscription{}, acked: map[int]uint64{}}
	u.mu.Lock()
	refused := u.mood.refuses
	if refused == nil {
		u.streams[s] = struct{}{}
	}
	u.mu.Unlock()
	if refused != nil {
		return refused
	}
	defer func() {
		u.mu.Lock()
		delete(u.streams, s)
		u.mu.Unlock()
	}()
	var pausing <-chan time.Time
	for {
		changed, revs := u.source.wait()
		u.mu.Lock()
		moved, moods := u.moved, u.moods
		u.mu.Unlock()
		if pausing == nil {
			sent := false
			for _, typeURL := range sortedTypes(s) {
				sub := s.types[typeURL]
				if sub.moods == moods && (sub.kind < 0 || sub.rev == revs[sub.kind]) {
					continue
				}
				if sub.kind >= 0 {
					sub.rev = revs[sub.kind]
				}
				sub.moods = moods
				if err := send(stream, s, sub); err != nil {
					return err
				}
				sent = true
			}
			if sent {
				pausing = time.After(pause)
			}
		}
		select {
		case r := <-requests:
			if err := u.take(stream, s, r, revs, moods, send); err != nil {
				return err
			}
		case <-pausing:
			pausing = nil
		case <-ifNot(pausing != nil, changed):
		case <-ifNot(pausing != nil, moved):
		case err := <-s.end:
			return err
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// ifNot returns c, or nil when it is not to be waited for.
func ifNot(not bool, c <-chan struct{}) <-chan struct{} {
	if not {
		return nil
	}
	return c
}

func sortedTypes(s *session) []string {
	out := make([]string, 0, len(s.types))
	for typeURL := range s.types {
		out = append(out, typeURL)
	}
	slices.Sort(out)
	return out
}

// take answers the first request of a type and requests without a nonce. Of other requests it
// notes the ACK.
func (u *upstream) take(stream grpc.ServerStream, s *session, r request, revs []uint64, moods uint64, send func(grpc.ServerStream, *session, *subscription) error) error {
	if r.typeURL == notAskedFor {
		return nil // it objects to a lie
	}
	sub := s.types[r.typeURL]
	if sub != nil && r.nonce != "" {
		if !r.nacks {
			u.acknowledged(s, sub, r.nonce)
		}
		return nil
	}
	if sub == nil {
		sub = &subscription{typeURL: r.typeURL, kind: u.serves(r.typeURL), holds: r.holds}
		if sub.holds == nil {
			sub.holds = map[string]string{}
		}
		s.types[r.typeURL] = sub
	} else { // asked for again, everything is sent again
		sub.answered = false
		for name := range sub.holds {
			sub.holds[name] = ""
		}
	}
	sub.moods = moods
	if sub.kind >= 0 {
		sub.rev = revs[sub.kind]
	}
	return send(stream, s, sub)
}

// serves returns the number of the kind that the upstream gives under a type URL. An istiod
// knows the newest version of each kind only; a relay serves all.
func (u *upstream) serves(typeURL string) int {
	n, ok := kindOf(typeURL)
	if !ok || !u.relay && typeURL != kinds[n].typeURL(kinds[n].versions[0]) {
		return -1
	}
	return n
}

// acknowledged notes how far the client of a session has come. A nonce ends with the commit
// that the response was made of.
func (u *upstream) acknowledged(s *session, sub *subscription, nonce string) {
	if sub.kind < 0 {
		return
	}
	_, number, _ := strings.Cut(nonce, ":")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return
	}
	s.acked[sub.kind] = n
	if len(s.acked) < len(kinds) {
		return
	}
	u.source.world.mu.Lock()
	now := u.source.commit
	u.source.world.mu.Unlock()
	for kind, n := range s.acked {
		u.acked.add(kind, n, now)
	}
}

// answer is the content of a kind that an upstream sends at one moment.
type answer struct {
	commit uint64
	keys   []int
	has    map[int]held
}

// look returns the content of a kind that the upstream sends now, and records it, except for
// lies.
func (u *upstream) look(kind int, m mood) answer {
	w := u.source.world
	w.mu.Lock()
	defer w.mu.Unlock()
	out := answer{commit: u.source.commit, has: map[int]held{}}
	if m.empty {
		return out
	}
	for _, key := range u.source.byKind[kind] {
		if m.half && lacksHalf(key) {
			continue
		}
		it := u.source.items[key]
		h := held{it.seq, it.present, it.element}
		if u.has != nil {
			h = u.has[key]
		}
		if !h.present || !m.lies.about(key) {
			u.source.record(key, h.seq, h.present)
		}
		if h.present {
			out.keys = append(out.keys, key)
			out.has[key] = h
		}
	}
	return out
}

// lacksHalf reports whether an upstream that has come back half empty lacks a key.
func lacksHalf(key int) bool { return key/len(kinds)%5 != 0 }

// begin returns the mood that a response is made in, and its nonce but for the commit. Not
// all that is asked for is answered.
func (u *upstream) begin(s *session, sub *subscription) (m mood, nonce int, answers bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.nonce++
	answers = (u.mood.withholds == 0 || u.mood.withholds-1 != sub.kind) && !u.mood.silent.covers(sub.typeURL) && sub.typeURL != u.never
	return u.mood, u.nonce, !s.ending && answers
}

// sendAll sends all of a type.
func (u *upstream) sendAll(stream grpc.ServerStream, s *session, sub *subscription) error {
	m, nonce, answers := u.begin(s, sub)
	if !answers {
		return nil
	}
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: sub.typeURL}
	var a answer
	if sub.kind >= 0 {
		a = u.look(sub.kind, m)
		for _, key := range a.keys {
			resp.Resources = append(resp.Resources, a.has[key].element)
		}
		m.lies.spoil(resp, a)
	}
	resp.VersionInfo, resp.Nonce = m.lies.version(a.commit), fmt.Sprintf("%d:%d", nonce, a.commit)
	if err := stream.SendMsg(resp); err != nil || m.lies != lieURL {
		return err
	}
	resp.TypeUrl = notAskedFor
	return stream.SendMsg(resp)
}

// sendDifference sends what the client does not have of a type, and names what it has no
// more.
func (u *upstream) sendDifference(stream grpc.ServerStream, s *session, sub *subscription) error {
	m, nonce, answers := u.begin(s, sub)
	if !answers {
		return nil
	}
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: sub.typeURL}
	var a answer
	if sub.kind >= 0 {
		a = u.look(sub.kind, m)
		for _, key := range a.keys {
			name, version := keyName(key), strconv.Itoa(a.has[key].seq)
			if m.lies.about(key) {
				version += "-lie" // to be sent again when the truth is told
			}
			if sub.holds[name] != version {
				sub.holds[name] = version
				resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: name, Version: version, Resource: a.has[key].element})
			}
		}
		for name := range sub.holds {
			if key, ok := parseKeyName(name); !ok || !a.has[key].present {
				delete(sub.holds, name)
				resp.RemovedResources = append(resp.RemovedResources, name)
			}
		}
		slices.Sort(resp.RemovedResources)
		m.lies.spoilDelta(resp, a)
	}
	if len(resp.Resources)+len(resp.RemovedResources) == 0 && sub.answered {
		return nil
	}
	sub.answered = true
	resp.SystemVersionInfo, resp.Nonce = m.lies.version(a.commit), fmt.Sprintf("%d:%d", nonce, a.commit)
	if err := stream.SendMsg(resp); err != nil || m.lies != lieURL {
		return err
	}
	resp.TypeUrl = notAskedFor
	return stream.SendMsg(resp)
}

// errRestarts is what streams end with when an upstream restarts or moves its clients.
var errRestarts = status.Error(codes.Unavailable, "the server restarts")

// errDenied is the error of an upstream that does not know the client any more.
var errDenied = status.Error(codes.Unauthenticated, "the credentials have expired")
