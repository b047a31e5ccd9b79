package attacks

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// zipped is an answer that is compressed, whether the relay accepts that or not.
func zipped(parts ...string) func(http.ResponseWriter, *http.Request) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	for _, part := range parts {
		_, _ = io.WriteString(z, part) // a buffer takes all
	}
	z.Close()
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		send(w, b.String())
	}
}

// drip makes an attack of a list that goes on by one byte, again and again.
func drip(plural string) evil {
	return func(w http.ResponseWriter, r *http.Request) bool {
		switch askedOf(r, plural) {
		case askedNothing:
			return false
		case askedList:
			send(w, `{"kind":"List","metadata":{"resourceVersion":"200"},"items":[`)
		case askedStream:
			send(w, `{"type":"ADDED","object":`)
		}
		for pace := rate.NewLimiter(rate.Every(100*time.Millisecond), 1); pace.Wait(r.Context()) == nil && send(w, " "); {
			w.(http.Flusher).Flush()
		}
		return true
	}
}

// plurals are kinds of networking.istio.io, with their plurals.
var plurals = map[string]string{
	"ServiceEntry": "serviceentries", "VirtualService": "virtualservices", "DestinationRule": "destinationrules", "Gateway": "gateways", "Sidecar": "sidecars",
	"WorkloadEntry": "workloadentries", "WorkloadGroup": "workloadgroups",
}

// everyKind makes an attack of one object of 8 MB in each kind. None of them ends.
func everyKind() evil {
	text := `"spec":{"a":"` + strings.Repeat("x", 7<<20)
	return func(w http.ResponseWriter, r *http.Request) bool {
		for _, plural := range plurals {
			switch askedOf(r, plural) {
			case askedNothing:
				continue
			case askedStream:
				send(w, `{"type":"ADDED","object":{`+text)
			case askedList:
				send(w, `{"kind":"List","metadata":{"resourceVersion":"200"},"items":[{`+text)
			}
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		}
		return false
	}
}

// kept returns the size of the largest file in the state directory.
func (s *stage) kept() (most int64) {
	all, _ := filepath.Glob(filepath.Join(s.dir, "state", "*"))
	for _, file := range all {
		if info, err := os.Stat(file); err == nil {
			most = max(most, info.Size())
		}
	}
	return most
}
