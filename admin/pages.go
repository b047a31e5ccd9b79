package admin

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
)

// pages passes requests from this host to the web pages. The pages have their own limit: requests that wait
// for a change must not take the slots of debug documents.
func (s *Server) pages(w http.ResponseWriter, r *http.Request) {
	if !withinHost(r) {
		http.Error(w, fmt.Sprintf(`the web page is only for connections over loopback:

  kubectl port-forward POD %[1]s:%[1]s        then open http://127.0.0.1:%[1]s/ui/
  ssh -L %[1]s:127.0.0.1:%[1]s HOST           likewise, then open that address`, portOf(r)), http.StatusForbidden)
		return
	}
	s.deps.Pages.ServeHTTP(w, r)
}

// portOf returns the local port of a request.
func portOf(r *http.Request) string {
	if tcp, ok := localAddr(r).(*net.TCPAddr); ok {
		return strconv.Itoa(tcp.Port)
	}
	return "15014"
}

// Readiness returns whether the relay serves its clients, with reasons, notes and remarks.
func (s *Server) Readiness() Readiness {
	r := s.readiness()
	r.Notes = append(r.Notes[:len(r.Notes):len(r.Notes)], s.deps.Remarks()...)
	return r
}

// Version returns the build of the relay, its socket and its memory.
func (s *Server) Version() Version {
	v := Version{Info: s.deps.Build, Name: s.deps.Name, Relay: s.deps.Relay, Started: s.deps.Started, AdminSocket: s.socket.Load().path}
	inUse, limit := s.deps.Memory()
	if v.MemoryInUse = inUse; limit < math.MaxInt64 {
		v.MemoryLimit = limit
	}
	return v
}
