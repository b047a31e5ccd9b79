package admin

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshrelay/upstreams"
)

// TestOffLoopbackReadySaysOneWord: names, addresses and errors are for operators.
func TestOffLoopbackReadySaysOneWord(t *testing.T) {
	f := newFixture(t, Config{})
	for _, ready := range []bool{true, false} {
		f.ready = Readiness{Ready: ready, Reasons: []string{"upstream east: disconnected (10.0.0.1:15012): secret"}}
		word, code := map[bool]string{true: "ready\n", false: "unready\n"}[ready], map[bool]int{true: 200, false: 503}[ready]
		for _, from := range []request{{local: public, remote: remote}, {local: public, remote: public}, {remote: remote}, {remote: "127.0.0.6:1"}} {
			from.path = "/ready"
			if got, body, _ := f.do(t, from); got != code || body != word {
				t.Errorf("from %+v: %d %q, want %d %q", from, got, body, code, word)
			}
			from.accept = jsonType
			if _, body, _ := f.do(t, from); strings.Contains(body, "secret") || !strings.Contains(body, `"ready"`) {
				t.Errorf("as JSON from %+v: %s", from, body)
			}
		}
		if _, body, _ := f.do(t, request{path: "/ready"}); !strings.Contains(body, "secret") {
			t.Errorf("on loopback: %q", body)
		}
		if _, body, _ := f.do(t, request{path: "/ready", local: public, remote: remote, peer: &peer{}}); !strings.Contains(body, "secret") {
			t.Errorf("over the socket: %q", body)
		}
	}
}

// TestAForeignHostIsRefusedOnEveryPathOfALoopbackAddress: a page in a browser can reach it under a name that
// resolves to 127.0.0.1.
func TestAForeignHostIsRefusedOnEveryPathOfALoopbackAddress(t *testing.T) {
	f := newFixture(t, Config{})
	paths := append(debugPaths(), append(profilePaths, "/ready", "/healthz", "/metrics", "/version", "/", "/none")...)
	for _, path := range paths {
		for _, host := range []string{"evil.example:15014", "127.0.0.1.evil.example", "localhost.evil.example:15014"} {
			if code, _, _ := f.do(t, request{path: path, host: host}); code != http.StatusForbidden {
				t.Errorf("%s as %s: %d", path, host, code)
			}
		}
	}
	for _, host := range []string{"localhost", "LOCALHOST:15014", "127.0.0.1:15014", "[::1]:15014"} {
		if code, _, _ := f.do(t, request{path: "/metrics", host: host}); code != http.StatusOK {
			t.Errorf("/metrics as %s: %d", host, code)
		}
	}
	if code, _, _ := f.do(t, request{path: "/metrics", host: "relay.example", local: public, remote: remote}); code != http.StatusOK {
		t.Errorf("/metrics off loopback: %d", code)
	}
}

// TestRequestsOfPagesAreRefused, including those whose answer the page could not read, such as one that starts a
// profile.
func TestRequestsOfPagesAreRefused(t *testing.T) {
	f := newFixture(t, Config{})
	for _, path := range append(debugPaths(), append(profilePaths, "/ready", "/metrics", "/healthz")...) {
		for _, headers := range [][]string{
			{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Sec-Fetch-Site", "anything"},
			{"Origin", "http://evil.example"}, {"Origin", "null"}, {"Origin", "http://localhost:8080", "Sec-Fetch-Site", "same-origin"},
		} {
			if code, _, _ := f.do(t, request{path: path, headers: headers}); code != http.StatusForbidden {
				t.Errorf("%s with %v: %d", path, headers, code)
			}
		}
		for _, site := range []string{"none", "same-origin"} {
			if code, body, _ := f.do(t, request{path: path, headers: []string{"Sec-Fetch-Site", site}}); code != http.StatusOK {
				t.Errorf("%s that a person typed (%s): %d %s", path, site, code, body)
			}
		}
	}
}

// TestProfilesTakeASlotOfDebugRequests, which bounds the profiles at the same time.
func TestProfilesTakeASlotOfDebugRequests(t *testing.T) {
	f := newFixture(t, Config{})
	for range maxDebugRequests {
		f.busy <- struct{}{}
	}
	if code, _, _ := f.do(t, request{path: "/debug/pprof/heap"}); code != http.StatusServiceUnavailable {
		t.Errorf("%d", code)
	}
}

// TestASocketThatAPortNamesIsOursOrNotUsed: another process may have the port and name its own socket.
func TestASocketThatAPortNamesIsOursOrNotUsed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "admin.sock")
	f, _, _ := controlled(t, Config{Socket: path})
	f.sources = []upstreams.Status{{Name: "east"}}
	address, stop := f.running(t)
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	if v, err := (Client{Address: address}).Version(t.Context()); err != nil || v.AdminSocket != path {
		t.Fatal(v, err) // it is open when it answers
	}
	named := Client{Address: address, Socket: path, Named: true}
	if _, err := named.Upstreams(t.Context()); err != nil {
		t.Fatalf("our own socket: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can give a socket to somebody else")
	}
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if _, err := named.Upstreams(t.Context()); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "65534") {
		t.Errorf("a socket of somebody else: %v", err)
	}
	named.Named = false // the user names it
	if _, err := named.Upstreams(t.Context()); err != nil {
		t.Errorf("a socket that the user names: %v", err)
	}
}

// TestASocketIsNotOpenedWhereEverybodyCanReplaceItsDirectory: the directory may be ours, but all users can write to
// its parent.
func TestASocketIsNotOpenedWhereEverybodyCanReplaceItsDirectory(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	own := filepath.Join(open, "relay")
	if err := os.MkdirAll(own, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil { // this is what is tested
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{own, filepath.Join(own, "new"), link} {
		if lis, err := listenUnix(filepath.Join(dir, "s")); err == nil || !strings.Contains(err.Error(), open) {
			if lis != nil {
				lis.Close()
			}
			t.Errorf("%s: %v", dir, err)
		}
	}
	if err := os.Chmod(open, 0o777|os.ModeSticky); err != nil { // likewise
		t.Fatal(err)
	}
	lis, err := listenUnix(filepath.Join(own, "s"))
	if err != nil {
		t.Fatalf("in a directory like /tmp: %v", err)
	}
	lis.Close()
}

// TestWhatOperatorsDoIsLoggedAtEveryLevel: a log level of warn does not hide who froze what.
func TestWhatOperatorsDoIsLoggedAtEveryLevel(t *testing.T) {
	f, _, _ := controlled(t, Config{})
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		f.level.Set(level)
		f.logged.Reset()
		if code, body, _ := f.do(t, request{method: http.MethodPost, path: "/upstreams/east/freeze", peer: &peer{UID: 7, PID: 8}}); code != http.StatusOK {
			t.Fatalf("%d %s", code, body)
		}
		if got := f.logged.String(); !strings.Contains(got, "action=freeze target=east parameters=\"\" uid=7 pid=8 ") {
			t.Errorf("at %v: %q", level, got)
		}
	}
}
