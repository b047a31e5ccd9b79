package admin

import (
	"net"
	"net/http"
	"strings"

	"meshrelay/internal/loopback"
)

// debugOnly passes the requests that withinHost passes, at most maxDebugRequests at a time.
func (s *Server) debugOnly(next http.HandlerFunc) http.Handler {
	return s.withinHost(func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.busy <- struct{}{}:
			defer func() { <-s.busy }()
			next(w, r)
		default:
			s.refuse(w, r, Refuse(http.StatusServiceUnavailable, "too many debug requests at the same time; try again"))
		}
	})
}

// withinHost lets through requests from this host.
func (s *Server) withinHost(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !withinHost(r) {
			http.Error(w, "only for connections over loopback: use it on the relay's own host, or through kubectl port-forward or ssh -L", http.StatusForbidden)
			return
		}
		endIn(w, operatorTimeout)
		next(w, r)
	}
}

// withinHost reports whether a request comes from this host: over the socket, or over a connection with both ends
// on loopback. A connection to a public address of this host does not count.
func withinHost(r *http.Request) bool {
	_, overSocket := peerOf(r.Context())
	return overSocket || loopback.Is(localAddr(r)) && loopback.Text(r.RemoteAddr)
}

func localAddr(r *http.Request) net.Addr {
	addr, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return addr
}

// notFromPages refuses requests of web pages in a browser. A page of another site can reach a loopback address of
// this host under a name that resolves to 127.0.0.1, and read the answer. It can also make the browser send
// requests to any address.
func notFromPages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch _, overSocket := peerOf(r.Context()); {
		case !overSocket && onLoopback(localAddr(r)) && r.Host != "" && !isLocalName(r.Host):
			http.Error(w, "the host of the request is not localhost or a loopback address", http.StatusForbidden)
		case isOfAPage(r):
			http.Error(w, "requests of web pages in a browser are refused", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// onLoopback reports whether an address is a loopback address, including that of a sidecar.
func onLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// isOfAPage reports whether a browser sends a request for a page of another site, or for a script. Requests that a
// user types, and those of other programs, do not have these headers.
func isOfAPage(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return r.Header.Get("Origin") != ""
	}
	return true
}

// isLocalName reports whether the host of a URL is localhost or a loopback address.
func isLocalName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return loopback.Host(strings.Trim(host, "[]"))
}
