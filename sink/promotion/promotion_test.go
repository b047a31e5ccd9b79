package promotion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
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

func TestPromotedObjectsHaveNothingOfTheRelayAndCanBeAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 30)
		before := metadataOf(s, true)
		o := options(t, connOf(s))
		o.DryRun = true
		version := s.Version
		if r, err := Promote(t.Context(), o); err != nil || r != (Report{Objects: 90, Changed: 90}) || s.Version != version {
			t.Fatalf("a dry run: %+v, %v", r, err)
		}
		if _, err := Adopt(t.Context(), o); err == nil || !strings.Contains(err.Error(), "sink dr is not promoted") {
			t.Errorf("adopted without a promotion: %v", err)
		}
		if err := Check(t.Context(), o.Conn(), namespace, "dr"); err != nil {
			t.Error(err)
		}
		o.DryRun = false
		began := time.Now()
		if r, err := Promote(t.Context(), o); err != nil || r != (Report{Objects: 90, Changed: 90}) {
			t.Fatalf("%+v, %v", r, err)
		}
		if d := time.Since(began); d < 15*time.Second {
			t.Errorf("it waited %v for writers that may be there", d)
		}
		if l := left(s); len(l) > 0 {
			t.Errorf("%d objects have something of the relay, such as %s", len(l), l[0])
		}
		after := metadataOf(s, true)
		checkOthers(t, before, after)
		if d := cmp.Diff(before["ServiceEntry a0"]["spec"], after["ServiceEntry a0"]["spec"]); d != "" || after["ServiceEntry a0"]["metadata"].(map[string]any)["managedFields"] == nil {
			t.Error("the edit of a person is lost", d)
		}
		var promoted *Promoted
		if err := Check(t.Context(), o.Conn(), namespace, "dr"); !errors.As(err, &promoted) || promoted.Phase != Done || promoted.By != "me" || promoted.Objects != 90 || promoted.Reason != "fire" || !promoted.Since.Equal(began.Truncate(time.Second)) {
			t.Errorf("%+v, %v", promoted, err)
		}
		version = s.Version
		if r, err := Promote(t.Context(), o); err != nil || r != (Report{Objects: 90}) || s.Version != version {
			t.Errorf("promoted twice: %+v, %v", r, err)
		}

		s.Remove(plurals["HTTPRoute"], "shop/a7")
		if err := apply(t.Context(), o.Conn(), "HTTPRoute", "a7", "kubectl", "", `{"new":true}`); err != nil {
			t.Fatal(err)
		}
		if err := apply(t.Context(), o.Conn(), "HTTPRoute", "a8", "meshrelay-sink-other", `,"labels":{"meshrelay.io/sink":"other"}`, `{}`); err != nil {
			t.Fatal(err)
		}
		foreign := metadataOf(s, true)
		if r, err := Adopt(t.Context(), o); err != nil || r != (Report{Objects: 90, Changed: 88, Missing: 1}) {
			t.Fatalf("%+v, %v", r, err)
		}
		after = metadataOf(s, true)
		checkOthers(t, before, after)
		for name, o := range after {
			text, _ := json.Marshal(o["metadata"])
			switch {
			case strings.HasSuffix(name, " other") || strings.HasSuffix(name, " person"):
			case name == "HTTPRoute a7" || name == "HTTPRoute a8":
				if d := cmp.Diff(foreign[name], o); d != "" {
					t.Errorf("%s is not the sink's, and was touched: %s", name, d)
				}
			case !strings.Contains(string(text), `"meshrelay.io/sink":"dr"`) || !strings.Contains(string(text), `"app.kubernetes.io/managed-by":"meshrelay"`) || strings.Contains(string(text), `"meshrelay.io/version"`) || !strings.Contains(string(text), `"manager":"meshrelay-sink-dr"`):
				t.Fatalf("%s is not the sink's again: %s", name, text)
			}
		}
		if n := len(s.Objects["/configmaps"]); n > 0 || Check(t.Context(), o.Conn(), namespace, "dr") != nil {
			t.Errorf("%d ConfigMaps are left", n)
		}
		// The sink has no conflicts with anybody about what it writes.
		path, version1 := pathOf("VirtualService", "a1")
		body := fmt.Sprintf(`{"apiVersion":%q,"kind":"VirtualService","metadata":{"name":"a1","namespace":"shop"%s},"spec":{"hosts":["b.example"],"ttl":2}}`, version1, strings.Replace(labels, `"1"`, `"2"`, 1))
		err := o.Conn().Write(t.Context(), apiserver.Write{Method: http.MethodPatch, Path: path, Type: apiserver.TypeApply, Body: []byte(body), Query: map[string][]string{"fieldManager": {"meshrelay-sink-dr"}}}, nil)
		if text, _ := json.Marshal(metadataOf(s, true)["VirtualService a1"]); err != nil || strings.Contains(string(text), "before-first-apply") {
			t.Errorf("the first write after adopt: %v, %s", err, text)
		}
	})
}

// TestACommandThatDiesAnywhereIsCompletedByTheNext ends the command before and after each of its requests.
func TestACommandThatDiesAnywhereIsCompletedByTheNext(t *testing.T) {
	run := func(t *testing.T, s *fakekube.Server, dies int, after bool, command func(context.Context, Options) (Report, error)) (requests int, err error) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		died := errors.New("died")
		o := options(t, connOf(roundTripper(func(r *http.Request) (*http.Response, error) {
			if requests++; dies > 0 && (requests > dies || requests == dies && !after) {
				cancel()
				return nil, died
			}
			return s.RoundTrip(r)
		})))
		o.Tell = func(string, ...any) {}
		_, err = command(ctx, o)
		return requests, err
	}
	// fill makes the objects of a sink that has written.
	fill := func(t *testing.T, s *fakekube.Server, n int) {
		fill(t, s, n)
		s.Put("coordination.k8s.io/leases", fakekube.Object(namespace, "meshrelay-sink-dr", `{"renewTime":"then"}`))
	}
	complete := func(t *testing.T, s *fakekube.Server, command func(context.Context, Options) (Report, error)) {
		t.Helper()
		if _, err := run(t, s, 0, false, command); err != nil {
			t.Fatal(err)
		}
	}
	var plain, adopted map[string]map[string]any
	var promotes, adopts int
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 2)
		promotes, _ = run(t, s, 0, false, Promote)
		plain = metadataOf(s, false)
		adopts, _ = run(t, s, 0, false, Adopt)
		adopted = metadataOf(s, false)
	})
	if promotes < 25 || adopts < 20 {
		t.Fatal(promotes, adopts)
	}
	for _, after := range []bool{false, true} {
		for dies := 1; dies <= promotes; dies++ {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				fill(t, s, 2)
				run(t, s, dies, after, Promote) //nolint:errcheck // it has died
				complete(t, s, Promote)
				if d := cmp.Diff(plain, metadataOf(s, false)); d != "" || len(left(s)) > 0 {
					t.Fatalf("died at request %d: %s", dies, d)
				}
				if n := len(s.Objects["/configmaps"]); n != 2 {
					t.Fatalf("died at request %d: %d ConfigMaps", dies, n)
				}
				complete(t, s, Adopt)
				if d := cmp.Diff(adopted, metadataOf(s, false)); d != "" || len(s.Objects["/configmaps"]) > 0 {
					t.Fatalf("died at request %d: %s", dies, d)
				}
			})
		}
		for dies := 1; dies <= adopts; dies++ {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				fill(t, s, 2)
				complete(t, s, Promote)
				run(t, s, dies, after, Adopt) //nolint:errcheck // it has died
				complete(t, s, Adopt)
				if d := cmp.Diff(adopted, metadataOf(s, false)); d != "" || len(s.Objects["/configmaps"]) > 0 {
					t.Fatalf("died at request %d: %s", dies, d)
				}
			})
		}
		for dies := 1; dies <= promotes; dies += 3 { // the way back from the middle
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				fill(t, s, 2)
				run(t, s, dies, after, Promote) //nolint:errcheck // it has died
				complete(t, s, Adopt)
				for name, o := range metadataOf(s, false) {
					if text := fmt.Sprint(o["metadata"]); !strings.HasSuffix(name, " person") && !strings.Contains(text, "meshrelay.io/sink") {
						t.Fatalf("died at request %d: %s", dies, text)
					}
				}
				if len(s.Objects["/configmaps"]) > 0 {
					t.Fatalf("died at request %d: ConfigMaps are left", dies)
				}
			})
		}
	}
}

func TestOnlyACertainAnswerLetsASinkWrite(t *testing.T) {
	answer := func(code int, body string) *apiserver.Conn {
		return connOf(roundTripper(func(*http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
			return w.Result(), nil
		}))
	}
	const absent = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"configmaps \"meshrelay-sink-dr\" not found","reason":"NotFound","details":{"name":"meshrelay-sink-dr","kind":"configmaps"},"code":404}`
	if err := Check(t.Context(), answer(404, absent), namespace, "dr"); err != nil {
		t.Error(err)
	}
	for name, conn := range map[string]*apiserver.Conn{
		"no connection":             nil,
		"a proxy's answer":          answer(404, "<html>not found</html>"),
		"an answer without details": answer(404, `{"kind":"Status","status":"Failure","reason":"NotFound","code":404}`),
		"another object is absent":  answer(404, strings.ReplaceAll(absent, "sink-dr", "sink-x")),
		"another object":            answer(200, `{"metadata":{"name":"x","namespace":"istio-system"}}`),
		"nothing":                   answer(200, `{}`),
		"no JSON":                   answer(200, `<html>`),
		"no right":                  answer(403, `{"kind":"Status","status":"Failure","reason":"Forbidden","message":"no","code":403}`),
		"a failure":                 answer(500, ``),
	} {
		err := Check(t.Context(), conn, namespace, "dr")
		if err == nil || errors.As(err, new(*Promoted)) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "no right" && !strings.Contains(err.Error(), "check with: kubectl auth can-i get configmaps/meshrelay-sink-dr -n istio-system") {
			t.Error(err)
		}
	}
	var promoted *Promoted
	err := Check(t.Context(), answer(200, `{"metadata":{"name":"meshrelay-sink-dr","namespace":"istio-system"}}`), namespace, "dr")
	if !errors.As(err, &promoted) { // somebody has made it by hand
		t.Error(err)
	}
}

// TestAConfigMapThatAPersonAnnotatesIsThatOfTheCommand.
func TestAConfigMapThatAPersonAnnotatesIsThatOfTheCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 2)
		_, err := Promote(t.Context(), options(t, connOf(roundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := s.RoundTrip(r)
			if resp != nil && r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/configmaps") {
				m, err := readMap(t.Context(), connOf(s), namespace, ObjectName("dr"))
				if err != nil {
					return nil, err
				}
				m.Metadata.Annotations = map[string]string{"seen": time.Now().String()}
				if err := m.save(t.Context(), connOf(s)); err != nil {
					return nil, err
				}
			}
			return resp, err
		}))))
		if err != nil || len(left(s)) > 0 {
			t.Errorf("%v; %v", err, left(s))
		}
	})
}

func TestASinkWithALeaseElsewhereIsNotPromotedHere(t *testing.T) {
	s := newServer()
	s.Put("coordination.k8s.io/leases", fakekube.Object("mesh", "meshrelay-sink-dr", `{}`))
	version := s.Version
	if _, err := Promote(t.Context(), options(t, connOf(s))); err == nil || !strings.Contains(err.Error(), "is in the namespace mesh, too: use --namespace mesh") || s.Version != version {
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
	if _, err := Promote(t.Context(), options(t, connOf(s))); err == nil || !strings.Contains(err.Error(), "can-i list leases.coordination.k8s.io -A") || s.Version != version {
		t.Error(err)
	}
	s.Put("coordination.k8s.io/leases", fakekube.Object(namespace, "meshrelay-sink-dr", `{"renewTime":"then"}`))
	version = s.Version
	o := options(t, connOf(s))
	o.DryRun = true
	if r, err := Promote(t.Context(), o); err != nil || r.Objects != 3 || s.Version != version {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestACommandLooksForOthersWhenItsWallClockHasJumped, as it does when a laptop wakes.
func TestACommandLooksForOthersWhenItsWallClockHasJumped(t *testing.T) {
	s := newServer()
	r := newRun(options(t, connOf(s)))
	if err := r.enter(t.Context(), State{Phase: Removing}); err != nil {
		t.Fatal(err)
	}
	s.Remove("/configmaps", namespace+"/meshrelay-sink-dr")
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
		if _, err := Promote(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no object has the label meshrelay.io/sink=rd") || s.Version != version {
			t.Error(err)
		}
		s.Put("coordination.k8s.io/leases", fakekube.Object(namespace, "meshrelay-sink-rd", `{"renewTime":"then"}`))
		if _, err := Promote(t.Context(), o); err != nil { // it has written nothing yet
			t.Error(err)
		}
	})
}

func TestACommandStopsWhenAnotherTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		fill(t, s, 60)
		o := options(t, connOf(s))
		o.WritesPerSecond = 2
		ended := make(chan error)
		go func() {
			_, err := Promote(t.Context(), o)
			ended <- err
		}()
		await.Pass(40 * time.Second) // it is removing labels
		back := options(t, connOf(s))
		if r, err := Adopt(t.Context(), back); err != nil || r.Missing > 0 {
			t.Errorf("%+v, %v", r, err)
		}
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "another command") {
			t.Error(err)
		}
		n := 0
		for _, o := range metadataOf(s, true) {
			if strings.Contains(fmt.Sprint(o["metadata"]), "meshrelay.io/sink:dr") {
				n++
			}
		}
		if n != 180 || len(s.Objects["/configmaps"]) > 0 {
			t.Errorf("%d objects are the sink's, %v", n, slices.Sorted(maps.Keys(s.Objects["/configmaps"])))
		}
	})
}
