package peers

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"meshrelay/internal/text"
)

const (
	maxPeers       = 16 // addresses of the service
	maxRequests    = 4  // at the same time to one address
	connectTimeout = 2 * time.Second
	askTimeout     = 10 * time.Second // of a request, with its answer
)

// Lookup returns the addresses of the replicas. This one may be among them.
type Lookup func(ctx context.Context) ([]netip.AddrPort, error)

// LookupService returns a Lookup of a service, host:port. The host resolves to the address of each replica.
func LookupService(service string) Lookup {
	return func(ctx context.Context) (out []netip.AddrPort, err error) {
		host, text, err := net.SplitHostPort(service)
		if err != nil {
			return nil, err
		}
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, err
		}
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		for _, a := range addrs {
			out = append(out, netip.AddrPortFrom(a.Unmap(), uint16(port)))
		}
		return out, err
	}
}

// Set asks the other replicas. Any goroutine may call its methods.
type Set struct {
	// Process identifies this process. A replica with the same ID is this one.
	Process string
	service string
	lookup  Lookup
	client  *http.Client
}

// NewSet returns a Set of the replicas that lookup finds. service names them in errors.
func NewSet(service string, lookup Lookup, creds *Credentials) *Set {
	return &Set{
		Process: rand.Text(), service: service, lookup: lookup,
		client: &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{ // without a proxy, and without compression, which could grow without bounds
				DialContext:     (&net.Dialer{Timeout: connectTimeout}).DialContext,
				TLSClientConfig: creds.config(x509.ExtKeyUsageServerAuth), TLSHandshakeTimeout: connectTimeout,
				DisableKeepAlives: true, MaxConnsPerHost: maxRequests, DisableCompression: true, MaxResponseHeaderBytes: maxHeaderBytes,
			},
		},
	}
}

// DialWith has the Set connect with another function: tests have connections in memory.
func (s *Set) DialWith(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	s.client.Transport.(*http.Transport).DialContext = dial
}

// Failure is a replica that has not answered, or whose answer was refused. Peer is its address, or the service when
// that could not be looked up.
type Failure struct {
	Peer string
	Err  error
}

// errKnown is the error of this replica, and of a second address of another one.
var errKnown = errors.New("it needs no answer")

// Each asks all other replicas for a document at once, and calls f with each answer, from several goroutines. path is
// the name of the document with its query. A body fails after most bytes, after 10 s, and when ctx ends. Replicas
// beyond 16 are not asked, and are a Failure together.
func (s *Set) Each(ctx context.Context, path string, most int64, f func(peer string, body io.Reader) error) (failures []Failure) {
	all, more, err := s.addresses(ctx)
	if err != nil {
		return []Failure{{s.service, fmt.Errorf("replicas.peers.service: %w", err)}}
	}
	if more > 0 {
		failures = append(failures, Failure{s.service, fmt.Errorf("it has %d more addresses than the %d that are asked: run fewer replicas", more, maxPeers)})
	}
	var mu sync.Mutex // guards failures and seen
	seen := map[string]bool{s.Process: true}
	first := func(process string) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case process == "":
			return errors.New("what answers is no relay: it sends no " + processHeader)
		case seen[process]:
			return errKnown
		}
		seen[process] = true
		return nil
	}
	var asked sync.WaitGroup
	for _, one := range all {
		asked.Go(func() {
			err := s.ask(ctx, one.String(), path, most, first, f)
			if err == nil || errors.Is(err, errKnown) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			failures = append(failures, Failure{one.String(), err})
		})
	}
	asked.Wait()
	return failures
}

// One is Each for the replica at one address.
func (s *Set) One(ctx context.Context, peer, path string, most int64, f func(body io.Reader) error) error {
	return s.ask(ctx, peer, path, most, func(string) error { return nil }, func(_ string, body io.Reader) error { return f(body) })
}

// addresses returns the addresses of all replicas, at most maxPeers, and the number of further ones.
func (s *Set) addresses(ctx context.Context) (all []netip.AddrPort, more int, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if all, err = s.lookup(ctx); err != nil {
		return nil, 0, err
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	all = slices.Compact(all)
	most := min(len(all), maxPeers)
	return all[:most], len(all) - most, nil
}

// ask asks one replica. It calls first with the ID of its process, before it reads the answer.
func (s *Set) ask(ctx context.Context, peer, path string, most int64, first func(process string) error, f func(string, io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+peer+"/"+path, nil)
	if err != nil {
		return err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := first(response.Header.Get(processHeader)); err != nil {
		return err
	}
	if response.StatusCode == http.StatusOK {
		return f(peer, http.MaxBytesReader(nil, response.Body, most))
	}
	why, _ := io.ReadAll(io.LimitReader(response.Body, 300)) // the status tells enough
	if response.StatusCode == http.StatusNotFound {
		return ErrNone
	}
	return fmt.Errorf("it answers %s: %q", text.Shorten(response.Status, 60), why)
}
