package admin

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// debugOnly lets through who may see everything: those within this host, and all if
// the config says so. Only so many at a time.
func (s *Server) debugOnly(next http.HandlerFunc) http.Handler {
	limited := func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.busy <- struct{}{}:
			defer func() { <-s.busy }()
			next(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, errBusy.Error(), http.StatusServiceUnavailable)
		}
	}
	if s.cfg.DebugOffLoopback {
		return http.HandlerFunc(limited)
	}
	return loopbackOnly(limited)
}

// loopbackOnly lets through connections within this host, those over the socket among them.
// Both ends count: a connection to a public address of this host is none, wherever it comes
// from.
func loopbackOnly(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		switch {
		case overSocket(r.Context()):
			next(w, r)
		case local == nil || !isLoopback(local.String()) || !isLoopback(r.RemoteAddr):
			http.Error(w, "only for connections over loopback: use it on the relay's own host, or through kubectl port-forward or ssh -L", http.StatusForbidden)
		case !isLocalName(r.Host):
			// A page in a browser on this host can get here under a name of its own that
			// resolves to 127.0.0.1, and would read the answer.
			http.Error(w, "the request names another host than localhost or a loopback address", http.StatusForbidden)
		default:
			next(w, r)
		}
	})
}

func isLoopback(hostport string) bool {
	addr, err := netip.ParseAddrPort(hostport)
	return err == nil && addr.Addr().Unmap().IsLoopback()
}

// isLocalName reports whether the host of a URL is this host by its nature.
func isLocalName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
