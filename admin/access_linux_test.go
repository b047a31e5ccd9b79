package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"meshrelay/audit"
	"meshrelay/config"
)

// dialAs connects to a socket as another user, with other groups. It ends the thread that it changes.
func dialAs(t *testing.T, path string, uid, gid int, groups []int) (c net.Conn, err error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never undone: the thread ends with the goroutine
		// These change the calling thread only, unlike Setresgid and Setresuid.
		if err = unix.Setgroups(groups); err != nil {
			return
		}
		for _, change := range []struct{ trap, id int }{{unix.SYS_SETRESGID, gid}, {unix.SYS_SETRESUID, uid}} {
			id := uintptr(change.id)
			if _, _, errno := unix.RawSyscall(uintptr(change.trap), id, id, id); errno != 0 {
				err = errno
				return
			}
		}
		c, err = net.Dial("unix", path)
	}()
	<-done
	return c, err
}

// asked sends a request over a connection, and closes it.
func asked(t *testing.T, c net.Conn, method, path string) (code int, body string) {
	t.Helper()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://relay"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var out bytes.Buffer
	if _, err := out.ReadFrom(answer.Body); err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, out.String()
}

// reachable returns a path for a socket in a directory that everybody may search.
func reachable(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{dir, filepath.Dir(dir), filepath.Dir(filepath.Dir(dir))} {
		if err := os.Chmod(at, 0o711); err != nil { // this is what is tested
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "admin.sock")
}

// TestReadersReadAndOperatorsAct, as the kernel tells who they are, over a real socket of mode 0660.
func TestReadersReadAndOperatorsAct(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	path := reachable(t)
	cfg := Config{Socket: path, Readers: config.Access{UIDs: []int{4001}, GIDs: []int{5000}}, Operators: config.Access{UIDs: []int{4002}, GIDs: []int{5002}}, Group: 5000}
	var out bytes.Buffer
	log := audit.New(audit.Options{Output: &out, Logger: slog.New(slog.DiscardHandler)})
	logCtx, end := context.WithCancel(context.Background())
	logged := make(chan error, 1)
	go func() { logged <- log.Run(logCtx) }()
	f, _, _ := controlled(t, cfg)
	deps := f.deps
	deps.Audit, deps.Logger = log, slog.New(slog.DiscardHandler)
	f.Server = New(Config{Address: "127.0.0.1:0", Socket: path, Readers: cfg.Readers, Operators: cfg.Operators, Group: cfg.Group}, deps)
	address, stop := f.running(t)
	transport := &http.Transport{DisableKeepAlives: true}
	if v, err := (Client{Address: address, HTTP: &http.Client{Transport: transport}}).Version(t.Context()); err != nil || v.AdminSocket != path {
		t.Fatal(v, err) // the socket is opened before the first answer
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o660 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	many := []int{5000}
	for gid := range 200 { // more than the first question has room for
		many = append(many, 6000+gid)
	}
	refused := 0
	for name, tc := range map[string]struct {
		uid, gid    int
		groups      []int
		opens       bool
		reads, acts bool
	}{
		"root":                                     {opens: true, reads: true, acts: true},
		"a stranger":                               {uid: 4009, gid: 4009, groups: []int{4009}},
		"a reader by its group":                    {uid: 4009, gid: 5000, opens: true, reads: true},
		"a reader by a supplementary group":        {uid: 4009, gid: 4009, groups: []int{4009, 5000}, opens: true, reads: true},
		"a reader by its user":                     {uid: 4001, gid: 4001, groups: []int{5000}, opens: true, reads: true},
		"an operator by its user":                  {uid: 4002, gid: 4002, groups: []int{5000}, opens: true, reads: true, acts: true},
		"an operator by its group":                 {uid: 4009, gid: 5002, groups: []int{5000}, opens: true, reads: true, acts: true},
		"an operator by one of many groups":        {uid: 4009, gid: 4009, groups: append(slices.Clone(many), 5002), opens: true, reads: true, acts: true},
		"an operator who can not open the socket":  {uid: 4002, gid: 4002},
		"many groups, none of which may carry out": {uid: 4009, gid: 4009, groups: many, opens: true, reads: true},
	} {
		for _, r := range []struct {
			method, path string
			may          bool
		}{
			{http.MethodGet, "/held", tc.reads}, {http.MethodGet, "/version", tc.reads}, {http.MethodPost, "/upstreams/east/freeze", tc.acts},
			{http.MethodGet, "/state/backup", tc.acts}, {http.MethodGet, "/support-bundle?seconds=0", tc.acts},
		} {
			c, err := dialAs(t, path, tc.uid, tc.gid, tc.groups)
			if (err == nil) != tc.opens {
				t.Fatalf("%s: opening it: %v", name, err)
			}
			if err != nil {
				break
			}
			code, body := asked(t, c, r.method, r.path)
			want := http.StatusOK
			if !r.may {
				want = http.StatusForbidden
				refused++
			}
			if code != want || !r.may && !strings.Contains(body, "admin.operators of the relay's config") {
				t.Errorf("%s: %s %s: %d %.200s", name, r.method, r.path, code, body)
			}
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	end()
	<-logged //nolint:errcheck // it has ended
	told := 0
	for raw := range bytes.Lines(out.Bytes()) {
		var line audit.Line
		if err := json.Unmarshal(raw, &line); err != nil {
			t.Fatal(err)
		}
		if line.Event == audit.OperatorRefused {
			told += max(1, int(line.Count))
		}
	}
	if told != refused {
		t.Errorf("%d were refused, and the audit log has %d", refused, told)
	}
}

// TestASocketThatTheGroupCanNotGetIsNotOpen: it stays closed, and the reason tells what to do.
func TestASocketThatTheGroupCanNotGetIsNotOpen(t *testing.T) {
	if os.Geteuid() != 0 {
		f := newFixture(t, Config{Socket: filepath.Join(t.TempDir(), "run", "admin.sock"), Operators: config.Access{GIDs: []int{1 << 20}}, Group: 1 << 20})
		if lis := f.openSocket(); lis != nil || !strings.Contains(f.socket.Load().problem, "make the relay's user a member of that group") {
			t.Errorf("%v", f.socket.Load())
		}
		return
	}
	f := newFixture(t, Config{Socket: filepath.Join(t.TempDir(), "run", "admin.sock"), Operators: config.Access{GIDs: []int{5000}}, Group: 5000})
	lis := f.openSocket()
	if lis == nil {
		t.Fatal(f.socket.Load().problem)
	}
	lis.Close()
	if !strings.Contains(f.logged.String(), "group can not reach the admin socket") {
		t.Errorf("a directory that is closed to the group is not told:\n%s", f.logged)
	}
}

func TestGroupsAreThoseOfTheKernel(t *testing.T) {
	_, server := connected(t)
	want, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if got := server.RemoteAddr().(peer).Groups; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
