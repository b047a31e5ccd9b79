package kubernetes

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"meshrelay/federation"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/object"
)

var serviceEntry = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}

func TestObjectsAreMirroredAndFollowed_K2(t *testing.T) {
	for name, prepare := range map[string]func(s *apiServer){
		"a streaming list":           func(*apiServer) {},
		"a list in pages":            func(s *apiServer) { s.NoStreams = true },
		"an older server":            func(s *apiServer) { s.NoStreams = true },
		"streams that are cut short": func(s *apiServer) { s.Cut = true },
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			prepare(s)
			want := []string{}
			for i := range 1203 {
				s.entry(fmt.Sprintf("shop/a%04d", i), "a.x")
				want = append(want, fmt.Sprintf("ServiceEntry shop/a%04d", i))
			}
			w := s.mirrors("", "")
			w.synced()
			w.serves(want...)
			s.entry("shop/b", "b.x")
			w.serves(append(slices.Clone(want), "ServiceEntry shop/b")...)
			s.Remove(entries, "shop/b")
			w.serves(want...)
		})
	}
}

func TestKindsComeGoAndChangeTheirVersion_K1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		w := s.mirrors("", "  guard: {percent: 100}\n")
		w.synced()
		const routes = "networking.istio.io/virtualservices"
		s.Put(routes, fakekube.Object("shop", "r", `{"hosts":["a"]}`))
		s.Define("networking.istio.io", "VirtualService", "virtualservices", "v1alpha3")
		w.serves("ServiceEntry shop/a", "VirtualService shop/r")
		before := w.aggregate.Get(mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}, Namespace: "shop", Name: "r"})

		s.Define("networking.istio.io", "VirtualService", "virtualservices", "v1")
		w.until("the other version is followed", func() bool { return s.Asked("/v1/virtualservices?") > 0 })
		s.Put(routes, fakekube.Object("shop", "r2", `{"hosts":["b"]}`))
		w.serves("ServiceEntry shop/a", "VirtualService shop/r", "VirtualService shop/r2")
		if now := w.aggregate.Get(before.Key()); !now.Equal(before) {
			t.Error("another version of the API has changed an object")
		}
		lists := s.Asked("serviceentries")
		s.Define("networking.istio.io", "VirtualService", "virtualservices")
		w.serves("ServiceEntry shop/a")
		if now := s.Asked("serviceentries"); now != lists {
			t.Errorf("another kind was asked for %d times meanwhile", now-lists)
		}
	})
}

func TestAnObjectThatCanNotBeDecodedIsRefusedByName_K3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		s.Put(entries, fakekube.Object("shop", "bad", `{"hosts":"none"}`))
		s.Put(entries, fakekube.Object("shop", "typed", `{}`, `{"metadata":{"labels":{"a":1}}}`))
		w := s.mirrors("", "")
		w.synced()
		w.serves("ServiceEntry shop/a")
		w.until("both are refused", func() bool { return w.status().RefusedTotal == 2 })
		text := fmt.Sprint(w.status().Refused)
		for _, want := range []string{"shop/bad", "spec.hosts", "shop/typed", "metadata.labels"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in %s", want, text)
			}
		}
		s.Put(entries, fakekube.Object("shop", "a", `{"resolution":"NEWER"}`))
		w.until("the change is refused", func() bool { return w.status().RefusedTotal == 3 })
		w.serves("ServiceEntry shop/a")
		s.entry("shop/bad", "b.x")
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/bad")
	})
}

// Nothing but the word of the server removes anything. The guard lets everything pass here, so that
// what is kept is not kept by it.
func TestNothingButTheServersWordRemoves_K4(t *testing.T) {
	answers := func(code int, reason string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { fakekube.Fail(w, code, reason); return true }
	}
	of := func(part string, f func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			return strings.Contains(r.URL.Path, part) && f(w, r)
		}
	}
	for name, tc := range map[string]struct {
		fault func(http.ResponseWriter, *http.Request) bool
		state upstreams.State // that it comes to
	}{
		"401":             {answers(401, "Unauthorized"), upstreams.StateDenied},
		"403 of all":      {answers(403, "Forbidden"), upstreams.StateDenied},
		"404 of the kind": {of("serviceentries", answers(404, "NotFound")), ""},
		"410 of the kind": {of("serviceentries", answers(410, "Gone")), upstreams.StateDisconnected},
		"429":             {answers(429, "TooManyRequests"), upstreams.StateDisconnected},
		"500":             {answers(500, "InternalError"), upstreams.StateDisconnected},
		"503 without a status": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}, upstreams.StateDisconnected},
		"an empty discovery": {of("/apis", func(w http.ResponseWriter, r *http.Request) bool { _, err := w.Write([]byte(`{}`)); return err == nil }), ""},
		"a page of a proxy": {of("/apis/", func(w http.ResponseWriter, r *http.Request) bool {
			_, err := w.Write([]byte(`<html>`))
			return err == nil
		}), ""},
		"a list of nothing": {of("/apis/", func(w http.ResponseWriter, r *http.Request) bool {
			_, err := w.Write([]byte(`{"items":[]}`))
			return err == nil
		}), ""},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "https://127.0.0.1:1/", http.StatusFound)
			return true
		}, ""},
		"connections that end": {func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }, upstreams.StateDisconnected},
		"a list that is cut short": {of("/apis/", func(w http.ResponseWriter, r *http.Request) bool {
			_, err := w.Write([]byte(`{"metadata":{"resourceVersion":"900"},"items":[`))
			return err == nil
		}), ""},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			s.entry("shop/a", "a.x")
			s.entry("shop/b", "b.x")
			w := s.mirrors("", "  guard: {percent: 100}\n")
			w.synced()
			w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
			s.Set(func() { s.Fault = tc.fault })
			s.Compact()
			s.drop()
			asked := s.Asked("")
			w.until("the server was asked again and again", func() bool { return s.Asked("") > asked+6 })
			if tc.state != "" {
				w.until("its state is "+string(tc.state), func() bool { return w.status().State == tc.state && w.status().LastError != "" })
			}
			w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
			s.Set(func() { s.Fault = nil })
			s.Remove(entries, "shop/a")
			w.serves("ServiceEntry shop/b")
			w.synced()
		})
	}
}

func TestAKindIsGoneWhenDiscoveryLacksItForLong_K4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		w := s.mirrors("", "  guard: {percent: 100}\n")
		w.synced()
		ready := false
		s.Set(func() {
			s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				s.Lock()
				defer s.Unlock()
				if r.URL.Path == "/readyz" && !ready {
					w.WriteHeader(http.StatusInternalServerError)
					return true
				}
				return false
			}
		})
		s.Define("networking.istio.io", "ServiceEntry", "serviceentries")
		s.drop()
		w.until("it asks whether the server is ready", func() bool { return s.Asked("/readyz") > 3 })
		w.serves("ServiceEntry shop/a")
		s.Set(func() { ready = true })
		w.serves()
		s.Define("networking.istio.io", "ServiceEntry", "serviceentries", "v1")
		w.serves("ServiceEntry shop/a")
	})
}

func TestDeletionsGoThroughTheGuard_K5(t *testing.T) {
	for name, empty := range map[string]func(s *apiServer){
		"an etcd that is emptied": func(s *apiServer) {
			s.Set(func() { s.Objects = map[string]map[string]map[string]any{} })
			s.Compact()
			s.drop()
		},
		"deletions one by one": func(s *apiServer) {
			for i := range 20 {
				s.Remove(entries, fmt.Sprintf("shop/a%02d", i))
			}
		},
		"a definition that is deleted": func(s *apiServer) { s.Define("networking.istio.io", "ServiceEntry", "serviceentries"); s.drop() },
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			want := []string{}
			for i := range 20 {
				s.entry(fmt.Sprintf("shop/a%02d", i), "a.x")
				want = append(want, fmt.Sprintf("ServiceEntry shop/a%02d", i))
			}
			w := s.mirrors("", "")
			w.synced()
			w.serves(want...)
			empty(s)
			w.until("deletions are held", func() bool { return w.status().Held != nil })
			if n := len(w.has()); n < 10 {
				t.Errorf("%d are served", n)
			}
		})
	}
}

func TestFieldsThatDoNotCountAreNoChange_K6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		w := s.mirrors("", "")
		w.synced()
		w.serves("ServiceEntry shop/a")
		key := mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "a"}
		before := w.aggregate.Get(key)
		s.entry("shop/a", "a.x", `{"status":{"conditions":[{"type":"Reconciled"}]}}`)
		s.entry("shop/a", "a.x", `{"metadata":{"managedFields":[{"manager":"x"}],"generation":7}}`)
		s.entry("shop/a", "a.x", `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"}}}`)
		s.entry("shop/b", "b.x") // comes after them
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
		if now := w.aggregate.Get(key); now != before {
			t.Errorf("it was served anew: %v", now.Metadata())
		}
	})
}

func TestARelistOfTheSameDecodesNothing_K7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		var decoded atomic.Int32
		s.faulty = func(*object.Object) { decoded.Add(1) }
		for i := range 50 {
			s.entry(fmt.Sprintf("shop/a%02d", i), "a.x", `{"spec":{"fresh":1}}`)
		}
		w := s.mirrors("", "")
		w.synced()
		w.until("all is served", func() bool { return len(w.has()) == 50 })
		key := mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "a07"}
		before := w.aggregate.Get(key)
		decoded.Store(0)
		lists := s.Asked("serviceentries", "sendInitialEvents")
		s.Compact()
		s.drop()
		s.entry("shop/b", "b.x", `{"spec":{"fresh":1}}`)
		w.until("it has listed anew", func() bool { return s.Asked("serviceentries", "sendInitialEvents") > lists && len(w.has()) == 51 })
		w.synced()
		if n := decoded.Load(); n != 1 {
			t.Errorf("%d objects were decoded, want the new one only", n)
		}
		if w.aggregate.Get(key) != before {
			t.Error("an object that is as it was is held anew")
		}
	})
}

func TestCredentialsRotateWithoutARelist_K8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.Token = "t"
		s.entry("shop/a", "a.x")
		w := s.mirrors("", "")
		w.synced()
		lists := s.Asked("serviceentries", "sendInitialEvents")
		for i := range 20 {
			token := fmt.Sprint("t", i)
			s.Set(func() { s.Token = token })
			fakekube.WriteKubeconfig(t, w.source.section.Cluster.Kubeconfig, s.http, token)
			w.until("the new token is used", func() bool { return w.detail().Rotations == uint64(i+1) })
			s.entry("shop/a", fmt.Sprintf("a%d.x", i)) // over the stream of before
		}
		s.entry("shop/b", "b.x")
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
		w.synced()
		if n := s.Asked("serviceentries", "sendInitialEvents") - lists; n != 0 {
			t.Errorf("it has listed %d times", n)
		}
	})
}

func TestAServerThatIsDownAtTheStartIsTriedAgain_K8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		s.Set(func() {
			s.Fault = func(w http.ResponseWriter, _ *http.Request) bool { panic(http.ErrAbortHandler) }
		})
		w := s.mirrors("", "")
		w.until("it tells what is wrong", func() bool { return w.status().LastError != "" })
		if st := w.status(); st.State != upstreams.StateConnecting || st.Synced {
			t.Errorf("state %s", st.State)
		}
		s.Set(func() { s.Fault = nil })
		w.synced()
		w.serves("ServiceEntry shop/a")
	})
}

func TestAnotherClusterBehindTheKubeconfigIsNotMirrored_K4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		w := s.mirrors("", "  guard: {percent: 100}\n")
		w.synced()
		other := newAPIServer(t)
		other.UID = "two"
		other.entry("shop/z", "z.x")
		fakekube.WriteKubeconfig(t, w.source.section.Cluster.Kubeconfig, other.http, "t")
		s.drop()
		w.until("it tells that it is another cluster", func() bool {
			return w.status().State == upstreams.StateFailed && strings.Contains(w.status().LastError, "this is another cluster: its kube-system has the uid two")
		})
		w.serves("ServiceEntry shop/a")
		fakekube.WriteKubeconfig(t, w.source.section.Cluster.Kubeconfig, s.http, "t")
		w.synced()
		s.entry("shop/b", "b.x")
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
	})
}

func TestTheStatusTellsOfEachKind_K9(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.Define("networking.istio.io", "Sidecar", "sidecars", "v1")
		s.entry("shop/a", "a.x", `{"spec":{"fresh":true}}`)
		s.Set(func() { s.Fault = failing("/sidecars", 403, "Forbidden") })
		w := s.mirrors("", "")
		w.synced()
		w.serves("ServiceEntry shop/a")
		st := w.status()
		d := w.detail()
		if st.Address != s.http.URL || d.Cluster != "one" || len(d.UnknownFields) != 1 {
			t.Errorf("address %s, cluster %s, unknown fields in %q", st.Address, d.Cluster, d.UnknownFields)
		}
		w.until("the version of the server is known", func() bool { return w.detail().Server == "v1.99.1" })
		s.Put(entries, fakekube.Object("shop", "bad", `{"hosts":"none"}`))
		w.until("a refused object is named", func() bool { return strings.Contains(fmt.Sprint(w.status().Refused), "shop/bad") })
		if !strings.Contains(st.LastError, "let it list and watch that kind") {
			t.Errorf("it is not told what to do: %s", st.LastError)
		}
		want := map[string]string{
			"networking.istio.io/ServiceEntry v1": "following", "networking.istio.io/Sidecar v1": "denied", "apiextensions.k8s.io/CustomResourceDefinition v1": "polled",
		}
		w.until("each kind has its state", func() bool {
			got := map[string]string{}
			for _, one := range w.status().Following {
				got[one.Kind+" "+one.Version] = one.State
			}
			return maps.Equal(got, want)
		})
		if !strings.Contains(st.LastError, "Sidecar") {
			t.Errorf("the error is %q", st.LastError)
		}
	})
}

func TestAKindThatIsNamedAndDeniedHoldsTheSyncUp_K2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.Define("networking.istio.io", "Sidecar", "sidecars", "v1")
		s.entry("shop/a", "a.x")
		s.Set(func() { s.Fault = failing("/sidecars", 403, "Forbidden") })
		w := s.mirrors("", "  import: {kinds: [sidecars, serviceentries]}\n")
		w.serves("ServiceEntry shop/a")
		w.until("it is denied", func() bool { return w.status().State == upstreams.StateDenied })
		if w.status().Synced {
			t.Error("it has synced without a kind that the config names")
		}
		if s.Asked("virtualservices") > 0 {
			t.Error("a kind was asked for that the config leaves out")
		}
	})
}

func TestObjectsComeWithTheirMetadata_K10(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x", `{"metadata":{"labels":{"app":"a"},"annotations":{"note":"on","kubectl.kubernetes.io/last-applied-configuration":"{}"}}}`)
		w := s.mirrors("", "")
		w.synced()
		r := w.aggregate.Get(mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "a"})
		md, from := r.Metadata(), r.Provenance()
		delete(md.Annotations, mirror.ProvenanceAnnotation)
		if md.CreateTime.Unix() != 1706933106 || fmt.Sprint(md.Labels, md.Annotations) != "map[app:a] map[note:on]" || r.SourceVersion() != "101" {
			t.Errorf("%v %v, version %s", md, md.CreateTime, r.SourceVersion())
		}
		if from.Source != "east" || from.SourceVersion != "101" || !slices.Equal(from.Path, []string{"hub"}) {
			t.Errorf("provenance %+v", from)
		}
	})
}

func TestUnhealthyWorkloadsAreLeftOut_K11(t *testing.T) {
	const checked = `{"metadata":{"annotations":{"proxy.istio.io/health-checks-enabled":"true"}}}`
	status := func(value string) string {
		return fmt.Sprintf(`{"status":{"conditions":[{"type":"Healthy","status":%q}]}}`, value)
	}
	const workloads = "networking.istio.io/workloadentries"
	inBubble(t, "", func(t *testing.T) {
		s := newAPIServer(t)
		s.Define("networking.istio.io", "WorkloadEntry", "workloadentries", "v1")
		s.Put(workloads, fakekube.Object("shop", "healthy", `{"address":"1.1.1.1"}`, checked, status("True")))
		s.Put(workloads, fakekube.Object("shop", "unhealthy", `{"address":"1.1.1.2"}`, checked, status("False")))
		s.Put(workloads, fakekube.Object("shop", "unknown", `{"address":"1.1.1.3"}`, checked))
		s.Put(workloads, fakekube.Object("shop", "unchecked", `{"address":"1.1.1.4"}`, status("False")))
		w := s.mirrors("", "")
		w.synced()
		w.serves("WorkloadEntry shop/healthy", "WorkloadEntry shop/unchecked")
		// An istiod gives nothing with the annotation traffic: MCP has no status.
		is := w.aggregate.Get(mirror.Key{Kind: federation.WorkloadEntry, Namespace: "shop", Name: "healthy"})
		if is.HasAnnotation(federation.HealthChecksAnnotation) {
			t.Error("the healthy one has the annotation")
		}
		if n := w.status().LeftOut["unhealthy"]; n != 2 {
			t.Errorf("%d are left out as unhealthy", n)
		}
		s.Put(workloads, fakekube.Object("shop", "unhealthy", `{"address":"1.1.1.2"}`, checked, status("True")))
		s.Put(workloads, fakekube.Object("shop", "healthy", `{"address":"1.1.1.1"}`, checked, status("False")))
		w.serves("WorkloadEntry shop/unchecked", "WorkloadEntry shop/unhealthy")
	})
}

func TestObjectsThatHavePassedThisRelayAreLeftOut_K12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		s.entry("shop/loop", "b.x", `{"metadata":{"annotations":{"meshrelay.io/from":"west@7 via other,hub"}}}`)
		s.entry("shop/far", "c.x", `{"metadata":{"annotations":{"meshrelay.io/from":"west via `+strings.Repeat("r,", 20)+`r"}}}`)
		s.entry("shop/near", "d.x", `{"metadata":{"annotations":{"meshrelay.io/from":"west(mine)@7 via other"}}}`)
		w := s.mirrors("", "")
		w.synced()
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/near")
		if out := w.status().LeftOut; out["loop"] != 1 || out["hops"] != 1 {
			t.Errorf("left out: %v", out)
		}
		near := w.aggregate.Get(mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "near"})
		if p := near.Provenance(); p.Cluster != "east" || len(p.Path) != 1 {
			t.Errorf("an author's word on the way was believed: %+v", p)
		}
	})
}

func TestNamespacesAreFollowedOneByOne_K2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		s.entry("shop/b", "b.x")
		s.entry("pay/c", "c.x")
		s.entry("other/d", "d.x")
		w := s.mirrors(", namespaces: [shop, pay]", "  guard: {percent: 100}\n")
		w.synced()
		w.serves("ServiceEntry pay/c", "ServiceEntry shop/a", "ServiceEntry shop/b")
		// What vanishes while the watches are down is gone with the lists after that.
		s.Set(func() { delete(s.Objects[entries], "shop/a") })
		s.Compact()
		s.drop()
		w.serves("ServiceEntry pay/c", "ServiceEntry shop/b")
		w.synced()
		// A namespace that may not be read any more keeps what it has.
		s.Set(func() {
			s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.URL.Path, "/namespaces/pay/") {
					fakekube.Fail(w, 403, "Forbidden")
					return true
				}
				return false
			}
		})
		s.Compact()
		s.drop()
		w.until("pay is denied", func() bool {
			return slices.ContainsFunc(w.status().Following, func(k upstreams.FollowedKind) bool { return k.Namespace == "pay" && k.State == "denied" })
		})
		s.Remove(entries, "shop/b")
		w.serves("ServiceEntry pay/c")
	})
}

func TestFurtherKindsAndTheSelectorOfTheConfig_K1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.Define("example.com", "Widget", "widgets", "v2")
		s.Put("example.com/widgets", fakekube.Object("shop", "w", `{"size":3}`))
		w := s.mirrors(`, kinds: [example.com/Widget], selector: "app=a"`, "")
		w.synced()
		w.serves("Widget shop/w")
		if s.Asked("labelSelector=app%3Da") == 0 {
			t.Error("the server was not told the selector")
		}
	})
}

func TestAListIsBoundedBeforeTheIntakeHasIt_K7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		for i := range 40 {
			s.entry(fmt.Sprintf("shop/a%02d", i), strings.Repeat("a", 1000))
		}
		w := s.mirrors("", "  limits: {maxBytes: 40000}\n")
		w.synced()
		w.until("what fits is served", func() bool {
			n := len(w.has())
			return n > 0 && n < 40 && n+w.status().RefusedTotal == 40
		})
		for _, r := range w.status().Refused {
			if !strings.Contains(r.Reason, "limits.maxBytes") {
				t.Errorf("%s: %s", r.Resource, r.Reason)
			}
		}
		big := newAPIServer(t)
		for i := range 400 {
			big.entry(fmt.Sprintf("shop/a%03d", i), "a.x")
		}
		b := big.mirrors("", "  limits: {maxBytes: 40000}\n")
		b.until("the list is an error", func() bool {
			return strings.Contains(b.status().LastError, "more objects of the kind than limits.maxBytes")
		})
	})
}

func TestAServerThatIsSilentIsLeftForAnotherTry_K4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		silent := true
		s.Set(func() {
			s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				s.Lock()
				hangs := silent && strings.Contains(r.URL.Path, "serviceentries")
				s.Unlock()
				if hangs {
					w.(http.Flusher).Flush()
					<-r.Context().Done()
				}
				return hangs
			}
		})
		w := s.mirrors("", "")
		w.until("it tells that the server is silent", func() bool { return strings.Contains(w.status().LastError, "the server is silent") })
		s.Set(func() { silent = false })
		w.serves("ServiceEntry shop/a")
		w.synced()
	})
}

func TestObjectsOfOtherRevisionsAreLeftOut_C11(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		s.entry("shop/b", "b.x", `{"metadata":{"labels":{"istio.io/rev":"canary"}}}`)
		s.entry("shop/c", "c.x", `{"metadata":{"labels":{"istio.io/rev":"stable"}}}`)
		w := s.mirrors("", "  import: {revision: stable}\n")
		w.synced()
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/c")
		s.entry("shop/b", "b.x", `{"metadata":{"labels":{"istio.io/rev":"stable"}}}`)
		s.entry("shop/c", "c.x", `{"metadata":{"labels":{"istio.io/rev":"canary"}}}`)
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
	})
}
