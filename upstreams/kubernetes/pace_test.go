package kubernetes

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams"
)

func TestAServerThatAnswersAtOnceIsNotAskedWithoutPause_K8(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"410": func(w http.ResponseWriter, _ *http.Request) { fakekube.Fail(w, 410, "Expired") },
		"an event of code 410": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"type":"ERROR","object":{"code":410,"reason":"Expired"}}`)
		},
		"500": func(w http.ResponseWriter, _ *http.Request) { fakekube.Fail(w, 500, "InternalError") },
		"bookmarks": func(w http.ResponseWriter, r *http.Request) {
			more := ""
			if r.URL.Query().Get("sendInitialEvents") == "true" {
				more = `,"annotations":{"k8s.io/initial-events-end":"true"}`
			}
			fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"101"%s}}}`, more)
		},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			begun, asked := time.Now(), 0
			done := make(chan time.Time, 1)
			s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "serviceentries") {
					return false
				}
				s.Lock()
				if asked++; asked == 35 {
					done <- time.Now()
				}
				s.Unlock()
				answer(w, r)
				return true
			}
			s.mirrors("", "")
			if took := (<-done).Sub(begun); took < 20*quick.Request {
				t.Errorf("it was asked %d times in %s", 35, took)
			}
		})
	}
}

func TestAllKindsWaitForOneAnswerOfWhichClusterItIs_K8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.Fault = func(w http.ResponseWriter, _ *http.Request) bool { fakekube.Fail(w, 500, "InternalError"); return true }
		cfg := configOf()
		sectionOf(cfg).Cluster.Kubeconfig = s.kubeconfig("t")
		source := newSource(cfg, envOf())
		source.pace.Retry = time.Hour
		source.prepare(&script{})
		if err := source.client.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer source.client.Close()
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() {
				if _, err := source.cluster.Verify(t.Context()); err == nil {
					t.Error("it is verified")
				}
			})
		}
		group.Wait()
		if n := s.Asked("kube-system"); n != 1 {
			t.Errorf("it was asked %d times", n)
		}
	})
}

func TestAClusterThatCanNotBeToldAnyMoreIsNotMirrored_K4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		w := s.mirrors("", "  guard: {percent: 100}\n")
		w.synced()
		w.serves("ServiceEntry shop/a")
		other := newAPIServer(t)
		other.UID = "" // may not be read
		other.entry("shop/z", "z.x")
		fakekube.WriteKubeconfig(t, w.source.section.Cluster.Kubeconfig, other.http, "t")
		s.drop()
		w.until("it was asked again and again", func() bool { return other.Asked("kube-system") > 6 })
		w.until("it is denied", func() bool {
			st := w.status()
			return st.State == upstreams.StateDenied && strings.Contains(st.LastError, "the identity of the cluster")
		})
		w.serves("ServiceEntry shop/a")
		if n := other.Asked("serviceentries"); n > 0 {
			t.Errorf("the other cluster was asked for its objects %d times", n)
		}
		fakekube.WriteKubeconfig(t, w.source.section.Cluster.Kubeconfig, s.http, "t")
		s.entry("shop/b", "b.x")
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
	})
}

func TestAnEtcdThatWasRestoredIsListedAnew_K4(t *testing.T) {
	for name, noStreams := range map[string]bool{"streaming lists": false, "lists in pages": true} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			s.NoStreams = noStreams
			s.entry("shop/a", "a.x")
			s.entry("shop/b", "b.x")
			w := s.mirrors("", "  guard: {percent: 100}\n")
			w.synced()
			s.entry("shop/b2", "b.x") // over the watch, which has lasted, for a reflector
			w.serves("ServiceEntry shop/a", "ServiceEntry shop/b", "ServiceEntry shop/b2")
			s.Set(func() {
				s.Version, s.Events = 50, nil
				delete(s.Objects[entries], "shop/b")
				delete(s.Objects[entries], "shop/b2")
				s.Stops++
			})
			s.entry("shop/c", "c.x")
			w.serves("ServiceEntry shop/a", "ServiceEntry shop/c")
			w.synced()
		})
	}
}
