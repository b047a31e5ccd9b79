package kubernetes

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams"
)

// An etcd that was restored may have come further than it was, with other objects, when it answers
// again. 429 is what a reflector asks again after, without a list.
func TestAnEtcdThatWasRestoredAndHasPassedOursIsListedAnew_K4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		s.entry("shop/b", "b.x")
		w := s.mirrors("", "  guard: {percent: 100}\n")
		w.synced()
		s.entry("shop/b2", "b.x")
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b", "ServiceEntry shop/b2")
		began := time.Now()
		s.Set(func() {
			s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.URL.Path, "serviceentries") {
					fakekube.Fail(w, 429, "TooManyRequests")
					return true
				}
				return false
			}
			s.Stops++
		})
		w.until("it is out of touch", func() bool {
			return time.Since(began) > 3*quick.grace && w.status().State == upstreams.StateDisconnected
		})
		s.Set(func() {
			delete(s.Objects[entries], "shop/b2")
			s.Version, s.Events = s.Version+500, nil
			o := fakekube.Object("shop", "c", `{"hosts":["c.x"]}`)
			o["metadata"].(map[string]any)["resourceVersion"] = "90" // of before ours, in another history
			s.Objects[entries]["shop/c"] = o
			s.Fault = nil
		})
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b", "ServiceEntry shop/c")
		w.synced()
	})
}

func TestStreamingListsAreTriedAgain_K8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.Cut, s.pace.Forgive = true, 300*time.Millisecond
		s.entry("shop/a", "a.x")
		w := s.mirrors("", "")
		w.serves("ServiceEntry shop/a")
		w.until("lists come in pages", func() bool { return s.Asked("serviceentries", "limit=500") > 0 })
		s.Set(func() { s.Cut = false })
		streams := s.Asked("serviceentries", "sendInitialEvents")
		w.synced()
		for range 2 { // when the cuts are forgotten
			await.Pass(s.pace.Forgive)
			w.relist()
			w.until("a list streams again", func() bool { return s.Asked("serviceentries", "sendInitialEvents") > streams })
			w.synced()
			streams = s.Asked("serviceentries", "sendInitialEvents")
		}
	})
}

// A server that starts may keep streaming lists waiting for as long as it fills its caches. Each try would
// cost syncTimeout.
func TestAStreamingListThatIsSilentIsAskedForInPages_K8(t *testing.T) {
	for name, headers := range map[string]bool{"before its headers": false, "behind its headers": true} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			s.entry("shop/a", "a.x")
			s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "serviceentries") || !strings.Contains(r.URL.RawQuery, "sendInitialEvents") {
					return false
				}
				if headers {
					w.(http.Flusher).Flush()
				}
				<-r.Context().Done()
				return true
			}
			w := s.mirrors("", "")
			w.serves("ServiceEntry shop/a")
			w.synced()
			if n := s.Asked("serviceentries", "sendInitialEvents"); n != 1 {
				t.Errorf("%d streams are asked for, want 1", n)
			}
		})
	}
}

func TestAnotherClusterIsNoticedAfterARestart_K4(t *testing.T) {
	for name, tc := range map[string]struct {
		feed           script
		settings, want string
	}{
		"as before":                 {script{identity: "one"}, "", ""},
		"never known":               {script{}, "", ""},
		"another":                   {script{identity: "two"}, "", "this is another cluster: its kube-system has the uid one, and that of the cluster before is two: correct the kubeconfig, or set clusterUID: one"},
		"another that is meant":     {script{identity: "two"}, "one", ""},
		"not the one of the config": {script{}, "three", "its kube-system has the uid one, and that of the cluster before is three"},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			cfg := configOf()
			sectionOf(cfg).Cluster.Kubeconfig, sectionOf(cfg).ClusterUID = s.kubeconfig("t"), tc.settings
			source := newSource(cfg, envOf())
			source.prepare(&tc.feed)
			if err := source.client.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer source.client.Close()
			_, err := source.cluster.Verify(t.Context())
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
			told := fmt.Sprint(tc.feed.told)
			if (name == "never known" || name == "another that is meant") != (told == "[{one}]") {
				t.Errorf("told: %s", told)
			}
		})
	}
}

// Objects that are as they were are not decoded again, and what was left out of them is known all the same.
func TestUnknownFieldsAreKnownInEveryVersionOfAKind_K9(t *testing.T) {
	for name, settings := range map[string]string{"all namespaces": "", "each namespace": ", namespaces: [shop, pay]"} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			s.entry("shop/a", "a.x", `{"spec":{"fresh":1}}`)
			s.entry("shop/gone", "a.x", `{"spec":{"fresh":1}}`)
			s.entry("pay/b", "b.x", `{"spec":{"fresh":1}}`)
			w := s.mirrors(settings, "  guard: {percent: 100}\n")
			w.synced()
			unknown := []string{"networking.istio.io/ServiceEntry"}
			w.until("the kind has unknown fields", func() bool { return slices.Equal(w.detail().UnknownFields, unknown) })
			s.Define("networking.istio.io", "ServiceEntry", "serviceentries", "v1beta1")
			w.until("the other version is followed", func() bool { return s.Asked("/v1beta1/", "serviceentries") > 0 })
			s.Remove(entries, "shop/gone")
			s.entry("shop/last", "c.x")
			w.serves("ServiceEntry pay/b", "ServiceEntry shop/a", "ServiceEntry shop/last")
			w.until("the kind has unknown fields", func() bool { return slices.Equal(w.detail().UnknownFields, unknown) })
			s.Define("networking.istio.io", "ServiceEntry", "serviceentries")
			w.until("the kind is gone", func() bool { return len(w.detail().UnknownFields) == 0 })
		})
	}
}
