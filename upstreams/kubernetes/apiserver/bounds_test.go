package apiserver

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"meshrelay/config"
	"meshrelay/internal/testing/fakekube"
)

// clientOf returns a client of a server that answers every request with f.
func clientOf(t *testing.T, f http.HandlerFunc) *Client {
	t.Helper()
	s := fakekube.New()
	s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		f(w, r)
		return true
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	fakekube.WriteKubeconfig(t, path, s.Start(t), "t")
	c := NewClient(&Credentials{Cluster: config.Cluster{Kubeconfig: path}}, "test")
	if err := c.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestCompressedAnswersAreRefused_K7(t *testing.T) {
	var bomb bytes.Buffer
	zip := gzip.NewWriter(&bomb)
	for range 32 {
		_, _ = zip.Write(make([]byte, 1<<20)) // a buffer takes all
	}
	zip.Close()
	for _, encoding := range []string{"gzip", "deflate", "identity", ""} {
		c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
			if got := r.Header["Accept-Encoding"]; len(got) != 1 || got[0] != "identity" {
				t.Errorf("asked for %q", got)
			}
			if encoding != "" {
				w.Header().Set("Content-Encoding", encoding)
			}
			if _, err := w.Write(bomb.Bytes()); err != nil {
				return // the client has gone
			}
		})
		resp, err := c.Current().Get(t.Context(), "/apis", nil, AcceptJSON)
		if refused := err != nil && strings.Contains(err.Error(), "/apis: the server has compressed its answer"); refused != (encoding == "gzip" || encoding == "deflate") {
			t.Fatalf("%s: %v", encoding, err)
		} else if refused {
			continue
		}
		if n, err := io.Copy(io.Discard, resp.Body); n != int64(bomb.Len()) || err != nil {
			t.Errorf("%s: %d bytes, %v", encoding, n, err)
		}
		resp.Body.Close()
	}
}

// endless answers with a text that has no end.
func endless(begin, more string) http.HandlerFunc {
	more = strings.Repeat(more, 1<<16/len(more))
	return func(w http.ResponseWriter, _ *http.Request) {
		for _, err := io.WriteString(w, begin); err == nil; _, err = io.WriteString(w, more) {
		}
	}
}

func TestAnAnswerThatIsReadAsAWholeIsBounded_K7(t *testing.T) {
	c := clientOf(t, endless(`{"a":"`, "x"))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := c.Current().Read(t.Context(), "/version", AcceptJSON, new(any))
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "/version: the answer is larger than 4 MiB") {
		t.Error(err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 16*maxAnswer {
		t.Errorf("%d bytes are allocated", n)
	}
}

func TestTheUIDOfAClusterIsBounded_K9(t *testing.T) {
	const uuid = "6f1c1a52-0a3e-4a5f-9a59-2f3f1f6a7f10"
	for uid, valid := range map[string]bool{
		uuid: true, "Aa0-": true, strings.Repeat("x", 128): true, "": true, // the last one tells nothing
		strings.Repeat("x", 129): false, strings.Repeat("x", 3<<20): false, "a b": false, "a\n": false, "\x1b[31m": false, "é": false, "../a": false,
	} {
		for _, known := range []string{"", uuid} {
			c := clientOf(t, func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"uid": uid}}) // the client may be gone
			})
			var kept []string
			keep := func(uid string) { kept = append(kept, uid) }
			cluster := NewCluster(c, known, Hooks{Identified: keep, Judged: func(uid string, _ error) { keep(uid) }})
			_, err := cluster.Verify(t.Context())
			switch {
			case valid && (err == nil) != (known == "" || uid == known):
				t.Errorf("%.200q: %v", uid, err)
			case !valid && (err == nil || !strings.Contains(err.Error(), "the identity of the cluster: its kube-system has a uid of") || len(err.Error()) > 300 || len(kept) > 0):
				t.Errorf("%.200q: %v, kept %.200q", uid, err, kept)
			}
		}
	}
}
