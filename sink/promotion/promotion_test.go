package promotion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/sink/lease"
	"meshrelay/upstreams/kubernetes/apiserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const namespace = "istio-system"

// plurals of the kinds of the server of newServer, with their groups.
var plurals = map[string]string{"ServiceEntry": "networking.istio.io/serviceentries", "VirtualService": "networking.istio.io/virtualservices", "HTTPRoute": "gateway.networking.k8s.io/httproutes"}

func newServer() *fakekube.Server {
	s := fakekube.New()
	s.Selects = true
	s.Define("networking.istio.io", "VirtualService", "virtualservices", "v1beta1")
	s.Define("gateway.networking.k8s.io", "HTTPRoute", "httproutes", "v1")
	s.Define("coordination.k8s.io", "Lease", "leases", "v1")
	return s
}

// roundTripper is a function that sends requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func connOf(t http.RoundTripper) *apiserver.Conn { return apiserver.NewConn("https://kube", t) }

func pathOf(kind, name string) (path, version string) {
	group, plural, _ := strings.Cut(plurals[kind], "/")
	version = group + "/v1"
	if kind == "VirtualService" {
		version = group + "/v1beta1"
	}
	return "/apis/" + version + "/namespaces/shop/" + plural + "/" + name, version
}

// apply applies an object as a manager, with more fields of metadata.
func apply(ctx context.Context, c *apiserver.Conn, kind, name, manager, more, spec string) error {
	path, version := pathOf(kind, name)
	body := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"namespace":"shop"%s},"spec":%s}`, version, kind, name, more, spec)
	return c.Write(ctx, apiserver.Write{Method: http.MethodPatch, Path: path, Type: apiserver.TypeApply, Body: []byte(body), Query: map[string][]string{"fieldManager": {manager}, "force": {"true"}}}, nil)
}

const labels = `,"labels":{"meshrelay.io/sink":"dr","app.kubernetes.io/managed-by":"meshrelay","team":"a"},"annotations":{"meshrelay.io/version":"1","meshrelay.io/from":"east","note":"n"}`

// fill makes n objects of each kind that belong to the sink dr, one of another sink, and one of a person.
func fill(t *testing.T, s *fakekube.Server, n int) {
	t.Helper()
	c := connOf(s)
	for _, kind := range slices.Sorted(maps.Keys(plurals)) {
		for i := range n {
			if err := apply(t.Context(), c, kind, fmt.Sprint("a", i), "meshrelay-sink-dr", labels, `{"hosts":["a.example"],"ttl":1}`); err != nil {
				t.Fatal(err)
			}
		}
		for _, err := range []error{
			apply(t.Context(), c, kind, "a0", "kubectl", "", `{"edited":true}`),
			apply(t.Context(), c, kind, "other", "meshrelay-sink-other", strings.Replace(labels, `"dr"`, `"other"`, 1), `{}`),
			apply(t.Context(), c, kind, "person", "kubectl", `,"labels":{"app.kubernetes.io/managed-by":"meshrelay"}`, `{}`),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func options(t *testing.T, c *apiserver.Conn) Options {
	return Options{Conn: func() *apiserver.Conn { return c }, Namespace: namespace, Sink: "dr", By: "me", Reason: "fire", WritesPerSecond: 1000, Tell: t.Logf}
}

// metadataOf returns the metadata of the objects that all kinds have, by kind and name. Versions of objects and
// times are left out unless whole is set.
func metadataOf(s *fakekube.Server, whole bool) map[string]map[string]any {
	s.Lock()
	defer s.Unlock()
	all := map[string]map[string]any{}
	for kind, of := range plurals {
		for _, o := range s.Objects[of] {
			text, _ := json.Marshal(o)
			var copied map[string]any
			_ = json.Unmarshal(text, &copied)
			meta := copied["metadata"].(map[string]any)
			if !whole {
				delete(meta, "resourceVersion")
				fields, _ := meta["managedFields"].([]any)
				for _, f := range fields {
					delete(f.(map[string]any), "time")
				}
			}
			all[kind+" "+fmt.Sprint(meta["name"])] = copied
		}
	}
	return all
}

// left returns what the sink's objects still have of the relay.
func left(s *fakekube.Server) (all []string) {
	for name, o := range metadataOf(s, true) {
		text, _ := json.Marshal(o["metadata"])
		if !strings.HasSuffix(name, " other") && !strings.HasSuffix(name, " person") && (strings.Contains(string(text), "meshrelay") || !strings.Contains(string(text), `"team":"a"`) || !strings.Contains(string(text), `"note":"n"`)) {
			all = append(all, string(text))
		}
	}
	return all
}

// checkOthers fails if an object that the sink does not own has changed.
func checkOthers(t *testing.T, before, after map[string]map[string]any) {
	t.Helper()
	for name, o := range before {
		if strings.HasSuffix(name, " other") || strings.HasSuffix(name, " person") {
			if d := cmp.Diff(o, after[name]); d != "" {
				t.Errorf("%s was touched: %s", name, d)
			}
		}
	}
}

// terms returns those of the sink's Lease, and its holder.
func terms(t *testing.T, s *fakekube.Server) (lease.Terms, string) {
	t.Helper()
	r, of, _, err := lease.ReadTerms(t.Context(), connOf(s), namespace, "meshrelay-sink-dr")
	if err != nil {
		t.Fatal(err)
	}
	return of, r.Holder
}

// hold makes the Lease of a sink that has written.
func hold(s *fakekube.Server) {
	s.Put("coordination.k8s.io/leases", fakekube.Object(namespace, "meshrelay-sink-dr", `{"renewTime":"then"}`))
}

func TestPromotionIsTheLeaseAndTouchesNoObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 3)
		before := metadataOf(s, true)
		o := options(t, connOf(s))
		o.DryRun = true
		version := s.Version
		if err := Promote(t.Context(), o); err != nil || s.Version != version {
			t.Fatalf("a dry run: %v", err)
		}
		o.DryRun = false
		began := time.Now().UTC()
		if err := Promote(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d < 16*time.Second {
			t.Errorf("it waited %v for writers", d)
		}
		note := lease.Note{By: "me", Reason: "fire", Since: began.Truncate(time.Second)}
		number := int(began.Unix()) + 1 // there was no Lease
		if of, holder := terms(t, s); of != (lease.Terms{Number: number, Promoted: note}) || holder != "promoted" {
			t.Errorf("%+v, %q", of, holder)
		}
		o.By = "another"
		if err := Promote(t.Context(), o); err != nil {
			t.Error(err)
		}
		if of, _ := terms(t, s); of.Number != number || of.Promoted != note {
			t.Errorf("promoted twice: %+v", of)
		}

		frozen := lease.Note{By: "another", Reason: "fire", Since: time.Now().UTC().Truncate(time.Second)}
		o.DryRun = true
		if err := Adopt(t.Context(), o); err != nil {
			t.Error(err)
		}
		if _, holder := terms(t, s); holder != "promoted" {
			t.Error("a dry run adopts")
		}
		o.DryRun = false
		if err := Adopt(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if of, holder := terms(t, s); of != (lease.Terms{Number: number, Frozen: frozen, Hold: true}) || holder != "" {
			t.Errorf("adopted: %+v, %q", of, holder)
		}
		if err := Adopt(t.Context(), o); err != nil && !strings.Contains(err.Error(), "is not promoted: there is nothing to adopt") {
			t.Error(err)
		}
		if d := cmp.Diff(before, metadataOf(s, true)); d != "" {
			t.Errorf("objects have changed: %s", d)
		}
		if err := Promote(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if of, _ := terms(t, s); of.Number != number+1 || of.Frozen != frozen || !of.Hold {
			t.Errorf("promoted again: %+v", of)
		}
	})
}

// TestALostLeaseIsAdoptedWhereTheSinkHasObjects, with a number above those that relays remember, and not where the name may be
// wrong.
func TestALostLeaseIsAdoptedWhereTheSinkHasObjects(t *testing.T) {
	s := newServer()
	fill(t, s, 1)
	o := options(t, connOf(s))
	if err := Adopt(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if of, holder := terms(t, s); time.Since(time.Unix(int64(of.Number), 0)).Abs() > time.Minute || of.Frozen.By != "me" || !of.Hold || holder != "" {
		t.Errorf("%+v, %q", of, holder)
	}
	o.Sink = "rd"
	if err := Adopt(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no object has the label meshrelay.io/sink=rd") {
		t.Error(err)
	}
}

func TestDisownedObjectsHaveNothingOfTheRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 30)
		hold(s)
		before := metadataOf(s, true)
		o := options(t, connOf(s))
		if _, err := Disown(t.Context(), o); err == nil || !strings.Contains(err.Error(), "is not promoted") {
			t.Errorf("disowned without a promotion: %v", err)
		}
		if err := Promote(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		o.DryRun = true
		version := s.Version
		if r, err := Disown(t.Context(), o); err != nil || r != (Report{Objects: 90, Changed: 90}) || s.Version != version {
			t.Errorf("a dry run: %+v, %v", r, err)
		}
		o.DryRun = false
		if r, err := Disown(t.Context(), o); err != nil || r != (Report{Objects: 90, Changed: 90}) {
			t.Fatalf("%+v, %v", r, err)
		}
		if l := left(s); len(l) > 0 {
			t.Errorf("%d objects have something of the relay, such as %s", len(l), l[0])
		}
		after := metadataOf(s, true)
		checkOthers(t, before, after)
		if d := cmp.Diff(before["ServiceEntry a0"]["spec"], after["ServiceEntry a0"]["spec"]); d != "" || after["ServiceEntry a0"]["metadata"].(map[string]any)["managedFields"] == nil {
			t.Error("the edit of a person is lost", d)
		}
		if _, holder := terms(t, s); holder != "promoted" {
			t.Errorf("the holder is %q", holder)
		}
	})
}

// TestACommandThatDiesAnywhereIsCompletedByTheNext ends the command before and after each of its requests.
func TestACommandThatDiesAnywhereIsCompletedByTheNext(t *testing.T) {
	run := func(t *testing.T, s *fakekube.Server, dies int, after bool, command func(context.Context, Options) error) (requests int, err error) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		died := errors.New("died")
		o := options(t, connOf(roundTripper(func(r *http.Request) (*http.Response, error) {
			requests++
			if dies > 0 && (requests > dies || requests == dies && !after) {
				cancel()
				return nil, died
			}
			return s.RoundTrip(r)
		})))
		o.Tell = func(string, ...any) {}
		return requests, command(ctx, o)
	}
	disown := func(ctx context.Context, o Options) error {
		_, err := Disown(ctx, o)
		return err
	}
	for name, command := range map[string]func(context.Context, Options) error{"promote": Promote, "disown": disown} {
		world := func(t *testing.T) *fakekube.Server {
			s := newServer()
			fill(t, s, 2)
			hold(s)
			if name == "disown" {
				if err := Promote(t.Context(), options(t, connOf(s))); err != nil {
					t.Fatal(err)
				}
			}
			return s
		}
		var want map[string]map[string]any
		all := 0
		synctest.Test(t, func(t *testing.T) {
			s := world(t)
			if all, _ = run(t, s, 0, false, command); all < 3 {
				t.Fatal(all)
			}
			want = metadataOf(s, false)
		})
		for dies := 2; dies <= 2*all+1; dies++ {
			synctest.Test(t, func(t *testing.T) {
				s := world(t)
				run(t, s, dies/2, dies%2 == 1, command) //nolint:errcheck // it has died
				if _, err := run(t, s, 0, false, command); err != nil {
					t.Fatal(err)
				}
				of, holder := terms(t, s)
				if d := cmp.Diff(want, metadataOf(s, false)); d != "" || of.Number != 1 || holder != "promoted" {
					t.Fatalf("%s died at request %d: %+v %q %s", name, dies/2, of, holder, d)
				}
			})
		}
	}
}

func TestASinkWithALeaseElsewhereIsNotPromotedHere(t *testing.T) {
	s := newServer()
	s.Put("coordination.k8s.io/leases", fakekube.Object("mesh", "meshrelay-sink-dr", `{}`))
	version := s.Version
	if err := Promote(t.Context(), options(t, connOf(s))); err == nil || !strings.Contains(err.Error(), "is in the namespace mesh, too: use --namespace mesh") || s.Version != version {
		t.Error(err)
	}
}

func TestASinkWhoseLeasesCanNotBeListedIsNotPromotedWithoutOneHere(t *testing.T) {
	s := newServer()
	fill(t, s, 1)
	s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/v1/leases") {
			fakekube.Fail(w, http.StatusForbidden, "Forbidden")
			return true
		}
		return false
	}
	version := s.Version
	if err := Promote(t.Context(), options(t, connOf(s))); err == nil || !strings.Contains(err.Error(), "can-i list leases.coordination.k8s.io -A") || s.Version != version {
		t.Error(err)
	}
	s.Put("coordination.k8s.io/leases", fakekube.Object(namespace, "meshrelay-sink-dr", `{"renewTime":"then"}`))
	version = s.Version
	o := options(t, connOf(s))
	o.DryRun = true
	if err := Promote(t.Context(), o); err != nil || s.Version != version {
		t.Error(err)
	}
}

// TestACommandLooksForOthersWhenItsWallClockHasJumped, as it does when a laptop wakes.
func TestACommandLooksForOthersWhenItsWallClockHasJumped(t *testing.T) {
	s := newServer()
	hold(s)
	r := newRun(options(t, connOf(s)))
	r.number, r.guarded = 1, time.Now()
	if err := r.guard(t.Context()); err != nil {
		t.Error("it looks at once", err)
	}
	r.guarded = time.Now().Round(0).Add(time.Hour)
	if err := r.guard(t.Context()); err == nil || !strings.Contains(err.Error(), "another command") {
		t.Error(err)
	}
}

func TestASinkThatIsNotInTheClusterIsNotPromoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 1)
		o := options(t, connOf(s))
		o.Sink = "rd"
		version := s.Version
		if err := Promote(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no object has the label meshrelay.io/sink=rd") || s.Version != version {
			t.Error(err)
		}
		s.Put("coordination.k8s.io/leases", fakekube.Object(namespace, "meshrelay-sink-rd", `{"renewTime":"then"}`))
		if err := Promote(t.Context(), o); err != nil { // it has written nothing yet
			t.Error(err)
		}
	})
}

func TestACommandStopsWhenAnotherTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 60)
		o := options(t, connOf(s))
		if err := Promote(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		o.WritesPerSecond = 2
		ended := make(chan error)
		go func() {
			_, err := Disown(t.Context(), o)
			ended <- err
		}()
		await.Pass(20 * time.Second) // it is removing labels
		if err := Adopt(t.Context(), options(t, connOf(s))); err != nil {
			t.Error(err)
		}
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "another command") {
			t.Error(err)
		}
	})
}
