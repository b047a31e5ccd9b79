package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// controls records orders, and answers with err.
type controls struct {
	told []string
	err  error
	set  func(what string)
}

func (c *controls) note(what string) error {
	if strings.Contains(what, " nowhere") {
		return fmt.Errorf("%w \"nowhere\"", intake.ErrUnknownUpstream)
	}
	c.told = append(c.told, what)
	if c.set != nil && c.err == nil {
		c.set(what)
	}
	return c.err
}

// Order records an order with its parameters.
func (c *controls) Order(_ context.Context, u, verb string, o intake.Order) (intake.Effect, error) {
	text := verb + " " + u
	if o.To != 0 {
		text += fmt.Sprintf(" to %d", o.To)
	}
	for name, on := range map[string]bool{" dry": o.DryRun, " force": o.Force, " all": o.All, " hold " + o.Hold: o.Hold != "", fmt.Sprintf(" only %d", len(o.Only)): len(o.Only) > 0, " because " + o.Reason: o.Reason != ""} {
		if on {
			text += name
		}
	}
	return intake.Effect{Removed: 2, Kept: 3}, c.note(text)
}

func (c *controls) Held(u string) ([]intake.HeldUpstream, error) {
	if err := c.note("held " + u); err != nil {
		return nil, err
	}
	return []intake.HeldUpstream{{Upstream: "east", Held: intake.Held{ID: "abc", Removals: 1, Of: 2}, Deletions: []intake.HeldDeletion{{Kind: "a/B", Name: "c"}}}}, nil
}

func (c *controls) Diff(u string, revision uint64) (upstreams.Differences, error) {
	return upstreams.Differences{Revision: state.Revision{ID: revision}}, c.note(fmt.Sprintf("diff %s %d", u, revision))
}

func (c *controls) History(u string) ([]state.Revision, error) {
	if err := c.note("history " + u); err != nil {
		return nil, err
	}
	return []state.Revision{{ID: 3, Time: created, Added: 1, Resources: 7, Keys: []string{"+a/B c/d"}}, {ID: 2, Time: created}}, nil
}

// writes are all requests that need the socket.
var writes = []request{
	{method: http.MethodPost, path: "/upstreams/east/freeze"},
	{method: http.MethodPost, path: "/upstreams/east/unfreeze"},
	{method: http.MethodPost, path: "/upstreams/east/release?hold=abc"},
	{method: http.MethodPost, path: "/upstreams/east/rollback?to=3"},
	{path: "/upstreams/east/history"},
	{path: "/held"},
	{path: "/upstreams/east/held"},
	{method: http.MethodPost, path: "/upstreams/east/serve-without"},
	{method: http.MethodPost, path: "/reload"},
	{method: http.MethodPost, path: "/plan"},
	{method: http.MethodPut, path: "/debug/loglevel?level=debug"},
	{path: "/state/backup"},
}

// controlled is a Server with everything that can be changed, behind a socket.
func controlled(t *testing.T, cfg Config) (*fixture, *controls, *[]string) {
	t.Helper()
	c, did := &controls{}, &[]string{}
	f := newFixture(t, cfg, func(d *Deps) {
		d.Controls = c
		d.Reload = func(context.Context) error { *did = append(*did, "reload"); return c.err }
		d.ReloadStatus = func() ReloadStatus {
			return ReloadStatus{LastAttempt: created, LastSuccess: created, NeedsRestart: []string{"node.id"}}
		}
		d.Backup = func(w io.Writer) error {
			*did = append(*did, "backup")
			_, err := io.WriteString(w, "the state")
			if c.err != nil { // late: a part has been sent
				_, err = w.Write(make([]byte, 1<<20))
			}
			return errors.Join(err, c.err)
		}
	})
	return f, c, did
}

func TestWhatChangesSomethingIsForTheSocketOnly(t *testing.T) {
	f, c, did := controlled(t, Config{Socket: "/run/relay/admin.sock"})
	f.socket.Store(&socketState{path: "/run/relay/admin.sock"})
	for _, r := range writes {
		for name, from := range map[string]request{
			"loopback": {}, "afar": {local: public, remote: remote, host: "relay.example"},
			"a request that claims the socket": {remote: "127.0.0.1:1", local: public, host: "uid=0 pid=1"},
		} {
			from.method, from.path = r.method, r.path
			code, body, _ := f.do(t, from)
			if code != http.StatusForbidden || !strings.Contains(body, "/run/relay/admin.sock") {
				t.Errorf("%s: %s %s: %d %s", name, r.method, r.path, code, body)
			}
		}
	}
	if len(c.told)+len(*did) != 0 || f.level.Level() != 0 {
		t.Errorf("something was done: %q %q", c.told, *did)
	}
	f.socket.Store(&socketState{problem: "others can write to directory /run/relay"})
	if code, body, _ := f.do(t, writes[0]); code != http.StatusForbidden || !strings.Contains(body, "others can write") {
		t.Errorf("without a socket: %d %s", code, body)
	}
	for _, r := range writes {
		r.peer = &peer{UID: 1000, PID: 42}
		if code, body, _ := f.do(t, r); code != http.StatusOK {
			t.Errorf("over the socket: %s %s: %d %s", r.method, r.path, code, body)
		}
	}
	want := []string{"freeze east", "unfreeze east", "release east hold abc", "rollback east to 3", "history east", "held ", "held east", "serve-without east"}
	if d := cmp.Diff(want, c.told); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"reload", "backup"}, *did); d != "" {
		t.Error(d)
	}
	for _, action := range []string{"freeze", "unfreeze", "release", "rollback", "reload", "log-level", "backup", "serve-without"} {
		if !strings.Contains(f.logged.String(), "msg=operator action="+action+" target=") {
			t.Errorf("%s is not logged:\n%s", action, f.logged)
		}
	}
	for _, given := range []string{"action=release target=east parameters=\"hold=abc\" uid=1000 pid=42", "action=rollback target=east parameters=\"to=3\" uid=1000 pid=42"} {
		if !strings.Contains(f.logged.String(), given) {
			t.Errorf("%s is not logged:\n%s", given, f.logged)
		}
	}
}

func TestWhatIsServedToEverybodyIsServedOverTheSocket(t *testing.T) {
	f := newFixture(t, Config{})
	for _, path := range append(append(debugPaths(), profilePaths...), "/ready", "/healthz", "/metrics") {
		// The host is not checked: a page in a browser can not reach the socket.
		if code, body, _ := f.do(t, request{path: path, host: "anything", remote: remote, peer: &peer{}}); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

func TestRefusalsSayWhy(t *testing.T) {
	f, c, _ := controlled(t, Config{})
	for _, tc := range []struct {
		name string
		r    request
		err  error
		code int
		want string
	}{
		{"no such upstream", request{path: "/upstreams/nowhere/freeze"}, nil, 404, `there is no upstream "nowhere": there are east`},
		{"an upstream that has gone meanwhile", request{path: "/upstreams/east/freeze"}, fmt.Errorf("%w: east", intake.ErrUnknownUpstream), 404, `there is no upstream "east": there are east`},
		{"not possible", request{path: "/upstreams/east/release?hold=abc"}, fmt.Errorf("%w: nothing is held", intake.ErrNotPossible), 409, "not possible: nothing is held"},
		{"too late", request{path: "/upstreams/east/release?hold=abc"}, context.DeadlineExceeded, 503, "deadline exceeded"},
		{"a failure", request{path: "/upstreams/east/release?hold=abc"}, errors.New("disk full"), 500, "disk full"},
		{"no revision", request{path: "/upstreams/east/rollback"}, nil, 400, "want the number of a revision"},
		{"a revision that is none", request{path: "/upstreams/east/rollback?to=-1"}, nil, 400, "want the number of a revision"},
		{"revision 0", request{path: "/upstreams/east/rollback?to=0"}, nil, 400, "want the number of a revision"},
		{"a config that is wrong", request{path: "/reload"}, errors.New("relay.yaml:1: nonsense"), 422, "relay.yaml:1: nonsense"},
		{"another method", request{method: http.MethodDelete, path: "/upstreams/east/freeze"}, nil, 405, ""},
		{"another verb", request{path: "/upstreams/east/thaw"}, nil, 404, ""},
		{"no such upstream to go on without", request{path: "/upstreams/nowhere/serve-without"}, nil, 404, `there is no upstream "nowhere": there are east`},
		{"nobody waits", request{path: "/upstreams/east/serve-without"}, fmt.Errorf("%w: clients are served", intake.ErrNotPossible), 409, "not possible: clients are served"},
		{"history", request{method: http.MethodGet, path: "/upstreams/nowhere/history"}, nil, 404, "there are east"},
		{"history without state", request{method: http.MethodGet, path: "/upstreams/east/history"}, fmt.Errorf("%w: state.dir is not set", intake.ErrNotPossible), 409, "state.dir is not set"},
	} {
		c.err = tc.err
		if tc.r.method == "" {
			tc.r.method = http.MethodPost
		}
		tc.r.peer = &peer{}
		if code, body, _ := f.do(t, tc.r); code != tc.code || !strings.Contains(body, tc.want) {
			t.Errorf("%s: %d %s", tc.name, code, body)
		}
	}
	for _, told := range c.told {
		if strings.HasPrefix(told, "rollback") {
			t.Errorf("%s, without a revision", told)
		}
	}
	// Without state there is no backup.
	bare := newFixture(t, Config{})
	if code, body, _ := bare.do(t, request{path: "/state/backup", peer: &peer{}}); code != http.StatusConflict || !strings.Contains(body, "state.dir is not set") {
		t.Errorf("backup without a state: %d %s", code, body)
	}
}

// TestTheSocketIsForItsOwnerOnly, serves, and leaves nothing behind.
func TestTheSocketIsForItsOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	path := filepath.Join(dir, "admin.sock")
	f, c, _ := controlled(t, Config{Socket: path})
	c.set = func(what string) {
		if what == "freeze east" {
			f.sources = []upstreams.Status{{Name: "east", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Frozen: &intake.Frozen{Frozen: state.Frozen{Since: created}}}}}
		}
	}
	address, stop := f.running(t)
	overTCP := Client{Address: address}
	ctx := t.Context()
	version, err := overTCP.Version(ctx)
	if err != nil || version.AdminSocket != path {
		t.Fatalf("%+v %v", version, err)
	}
	for p, want := range map[string]os.FileMode{dir: os.ModeDir | 0o700, path: os.ModeSocket | 0o600} {
		if info, err := os.Lstat(p); err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v, want %v", p, info.Mode(), err, want)
		}
	}
	over := Client{Address: address, Socket: path}
	s, err := over.Order(ctx, "east", "freeze", intake.Order{})
	if err != nil || s.Frozen == nil || !s.Frozen.Since.Equal(created) || !s.KeepsState {
		t.Errorf("%+v %v", s, err)
	}
	shop, err := intake.ParsePart("vs/shop")
	if err != nil {
		t.Fatal(err)
	}
	other, err := intake.ParsePart("*/a")
	if err != nil {
		t.Fatal(err)
	}
	for what, o := range map[string]intake.Order{
		"freeze east dry because it is meant: 100 %": {Reason: "it is meant: 100 %", DryRun: true},
		"unfreeze east force":                        {Force: true},
		"release east all":                           {All: true},
		"release east only 2":                        {Only: []intake.Part{shop, other}},
		"release east hold a&b":                      {Hold: "a&b"},
		"rollback east to 3":                         {To: 3},
	} {
		verb, _, _ := strings.Cut(what, " ")
		s, err := over.Order(ctx, "east", verb, o)
		told := strings.Fields(c.told[len(c.told)-1])
		want := strings.Fields(what)
		slices.Sort(told)
		slices.Sort(want)
		if err != nil || s.Name != "east" || s.Effect.Removed != 2 || s.DryRun != strings.Contains(what, "dry") || !slices.Equal(told, want) {
			t.Errorf("%s: %+v %v, told %q", what, s, err, c.told[len(c.told)-1])
		}
	}
	if h, err := over.Held(ctx, ""); err != nil || len(h) != 1 || h[0].ID != "abc" || h[0].Deletions[0].Name != "c" {
		t.Errorf("%+v %v", h, err)
	}
	if h, err := over.History(ctx, "east"); err != nil || len(h) != 2 || h[0].ID != 3 || !h[0].Time.Equal(created) || h[0].Keys[0] != "+a/B c/d" {
		t.Errorf("%+v %v", h, err)
	}
	if r, err := over.Reload(ctx); err != nil || len(r.NeedsRestart) != 1 {
		t.Errorf("%+v %v", r, err)
	}
	var backup bytes.Buffer
	if err := copyBackup(ctx, over, &backup); err != nil || backup.String() != "the state" {
		t.Errorf("%q %v", backup.String(), err)
	}
	if level, err := over.SetLogLevel(ctx, "debug", 0); err != nil || level != "debug" {
		t.Errorf("%q %v", level, err)
	}
	if level, err := over.SetLogLevel(ctx, "debug", time.Hour); err != nil || !strings.HasPrefix(level, "debug until ") {
		t.Errorf("%q %v", level, err)
	}
	if level, err := over.SetLogLevel(ctx, "debug", 0); err != nil || level != "debug" {
		t.Errorf("%q %v", level, err)
	}
	if level, err := over.LogLevel(ctx); err != nil || level != "debug" {
		t.Errorf("%q %v", level, err)
	}
	if _, err := over.SetLogLevel(ctx, "loud & clear", 0); err == nil || !strings.Contains(err.Error(), `"loud & clear"`) {
		t.Error(err)
	}
	if r, err := over.Ready(ctx); err != nil || !r.Config.LastSuccess.Equal(created) {
		t.Errorf("%+v %v", r, err)
	}
	var refused *StatusError
	if _, err := over.Order(ctx, "a/b?c", "freeze", intake.Order{}); !errors.As(err, &refused) || refused.Code != 404 || !strings.Contains(refused.Text, `"a/b?c"`) {
		t.Errorf("%v", err)
	}
	if _, err := overTCP.Order(ctx, "east", "freeze", intake.Order{}); !errors.As(err, &refused) || refused.Code != 403 || !strings.Contains(refused.Text, path) {
		t.Errorf("%v", err)
	}
	if got := f.logged.String(); !strings.Contains(got, fmt.Sprintf("action=freeze target=east parameters=\"\" uid=%d pid=%d ", os.Getuid(), os.Getpid())) {
		t.Errorf("who did it is not logged:\n%s", got)
	}
	// A client notices a backup that fails half-way.
	c.err = errors.New("disk error")
	if err := copyBackup(ctx, over, io.Discard); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
	if _, err := over.Order(ctx, "east", "freeze", intake.Order{}); err == nil || !strings.Contains(err.Error(), "on the relay's own host") {
		t.Errorf("after the end: %v", err)
	}
}

func TestASocketThatNobodyServesIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "admin.sock")
	first, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(path); err == nil || !strings.Contains(err.Error(), "another process serves it") {
		t.Fatalf("of a live one: %v", err)
	}
	// As if the process had been killed.
	first.(peerListener).SetUnlinkOnClose(false)
	first.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	second, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}

func TestAPlaceThatIsNotSafeForTheSocketIsRefused(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	file := filepath.Join(dir, "file")
	for _, err := range []error{os.Mkdir(open, 0o700), os.Chmod(open, 0o770), os.WriteFile(file, nil, 0o600), os.Chmod(dir, 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ name, path, want string }{
		{"others can write there", filepath.Join(open, "admin.sock"), "others can write to directory"},
		{"a file of the name", file, "is a file and not a socket"},
		{"below a file", filepath.Join(file, "admin.sock"), "not a directory"},
	} {
		if lis, err := listenUnix(tc.path); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "admin.socket") {
			t.Errorf("%s: %v %v", tc.name, lis, err)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("what was there has been removed: %v", err)
	}
	if os.Geteuid() == 0 {
		other := filepath.Join(dir, "other")
		if err := errors.Join(os.Mkdir(other, 0o700), os.Chown(other, 12345, -1)); err != nil {
			t.Fatal(err)
		}
		if _, err := listenUnix(filepath.Join(other, "admin.sock")); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
			t.Errorf("of another user: %v", err)
		}
	}

	// The relay runs without the socket, and logs it.
	f := newFixture(t, Config{Socket: filepath.Join(open, "admin.sock")}, func(d *Deps) {
		d.Notes = func() []string { return []string{"state: disk full"} }
		d.ReloadStatus = func() ReloadStatus {
			return ReloadStatus{Error: "relay.yaml:1: nonsense", FailingSince: created, NeedsRestart: []string{"node.id", "admin.address"}}
		}
	})
	address, stop := f.running(t)
	c := Client{Address: address}
	r, err := c.Ready(t.Context())
	if err != nil || !r.Ready || len(r.Reasons) != 4 {
		t.Fatalf("%+v %v", r, err)
	}
	for i, want := range []string{
		"config file not loaded since 2024-02-03T04:05:06Z, the previous config stays: relay.yaml:1: nonsense",
		"config fields changed that need a restart: node.id, admin.address",
		"others can write to directory " + open,
		"state: disk full",
	} {
		if !strings.Contains(r.Reasons[i], want) {
			t.Errorf("%q, want %q", r.Reasons[i], want)
		}
	}
	if v, err := c.Version(t.Context()); err != nil || v.AdminSocket != "" {
		t.Errorf("%+v %v", v, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(f.logged.String(), "level=WARN msg=\"admin socket not open") {
		t.Errorf("no warning:\n%s", f.logged)
	}
}

func TestOneThingIsChangedAtATime(t *testing.T) {
	f, c, _ := controlled(t, Config{})
	f.writing <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	r := (&http.Request{}).WithContext(ctx)
	if err := f.write(r, &order{target: "east"}, f.upstreamText, func() error { return c.note("freeze") }); !errors.Is(err, context.DeadlineExceeded) || len(c.told) > 0 {
		t.Errorf("%v %q", err, c.told)
	}
	f.backups.Lock()
	if code, _, header := f.do(t, request{path: "/state/backup", peer: &peer{}}); code != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
		t.Errorf("%d %v", code, header)
	}
}

func TestWhetherTheRelayKeepsStateIsSaid(t *testing.T) {
	f := newFixture(t, Config{}, func(d *Deps) { d.Controls = &controls{} }) // without Backup
	for want, f := range map[string]*fixture{"\"keepsState\": false": f, "\"keepsState\": true": first(controlled(t, Config{}))} {
		if code, body, _ := f.do(t, request{method: http.MethodPost, path: "/upstreams/east/freeze", peer: &peer{}}); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%d %s, want %s", code, body, want)
		}
	}
}

func first(f *fixture, _ *controls, _ *[]string) *fixture { return f }

func TestAnUpstreamThatIsGoneAfterwardsIsSaid(t *testing.T) {
	f, c, _ := controlled(t, Config{})
	c.set = func(string) { f.sources = nil }
	if code, body, _ := f.do(t, request{method: http.MethodPost, path: "/upstreams/east/freeze", peer: &peer{}}); code != http.StatusNotFound {
		t.Errorf("%d %s", code, body)
	}
}

func TestEachMistakeOfAConfigIsALine(t *testing.T) {
	f, c, _ := controlled(t, Config{})
	c.err = errors.Join(errors.New("relay.yaml:1: a:\n  b"), errors.Join(errors.New("relay.yaml:2: c"), errors.New("relay.yaml:3: d")))
	want := "relay.yaml:1: a: b\nrelay.yaml:2: c\nrelay.yaml:3: d\n"
	if code, body, _ := f.do(t, request{method: http.MethodPost, path: "/reload", peer: &peer{}}); code != http.StatusUnprocessableEntity || body != want {
		t.Errorf("%d %q, want %q", code, body, want)
	}
}

// TestARelayThatDoesNotAnswerIsNamedOnce in one sentence, with only the last cause.
func TestARelayThatDoesNotAnswerIsNamedOnce(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := lis.Addr().String()
	lis.Close()
	_, err = Client{Address: address}.Ready(t.Context())
	var unreachable *UnreachableError
	if !errors.As(err, &unreachable) || unreachable.Address != address || err.Error() != "no relay answers at "+address+": connection refused" {
		t.Errorf("%v", err)
	}
	ended, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if _, err := (Client{Address: address}).Ready(ended); !errors.Is(err, context.DeadlineExceeded) || err.Error() != "no relay answers at "+address+" in time" {
		t.Errorf("%v", err)
	}
	socket := filepath.Join(t.TempDir(), "admin.sock")
	if _, err := (Client{Socket: socket}).Ready(t.Context()); !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "no relay answers at the socket "+socket+": no such file or directory: run the command on") {
		t.Errorf("%v", err)
	}
}

func TestReloadMetrics(t *testing.T) {
	s := ReloadStatus{Error: "bad"}
	const want = `# HELP relay_config_last_reload_successful 1 if the last reload of the config succeeded, 0 if it failed.
# TYPE relay_config_last_reload_successful gauge
relay_config_last_reload_successful 0
`
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewReloadMetric(func() ReloadStatus { return s }))
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	s.Error = ""
	if err := testutil.GatherAndCompare(registry, strings.NewReader(strings.Replace(want, "successful 0", "successful 1", 1))); err != nil {
		t.Error(err)
	}
}

// connected returns both ends of a connection over a Unix socket of the admin server.
func connected(t *testing.T) (client, server net.Conn) {
	t.Helper()
	lis, err := listenUnix(filepath.Join(t.TempDir(), "run", "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lis.Close() })
	if client, err = net.Dial("unix", lis.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if server, err = lis.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return client, server
}

func TestCredentialsAreThoseOfThePeer(t *testing.T) {
	client, server := connected(t)
	ctx := withPeer(t.Context(), server)
	if who, ok := peerOf(ctx); !ok || who.UID != os.Getuid() || who.PID != os.Getpid() || server.RemoteAddr().Network() != "unix" {
		t.Errorf("%v", server.RemoteAddr())
	}
	if _, ok := peerOf(withPeer(t.Context(), client)); ok {
		t.Error("any Unix socket passes for ours")
	}
}

// copyBackup writes a copy of the state to w, as curl does.
func copyBackup(ctx context.Context, c Client, w io.Writer) error {
	return c.do(ctx, http.MethodGet, "/state/backup", "application/octet-stream", func(body io.Reader) error {
		_, err := io.Copy(w, body)
		return err
	})
}
