package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"meshrelay/events"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams"
)

const chosen = `, discoverySelectors: ["mesh=on", "team in (a, b)"]`

// choosing is a server with objects in namespaces. Shop and pay are chosen.
func choosing(t *testing.T) *apiServer {
	s := newAPIServer(t)
	s.Define("", "Namespace", "namespaces", "v1")
	s.Namespace("shop", `{"mesh":"on"}`)
	s.Namespace("pay", `{"team":"b"}`)
	s.Namespace("other", `{"mesh":"off"}`)
	s.entry("shop/a", "a.x")
	s.entry("pay/b", "b.x")
	s.entry("other/c", "c.x")
	return s
}

func TestNamespacesAreChosenByTheirLabels_K14(t *testing.T) {
	for name, noStreams := range map[string]bool{"streaming lists": false, "lists": true} {
		inBubble(t, name, func(t *testing.T) {
			s := choosing(t)
			s.NoStreams = noStreams
			chosenByLabels(s)
		})
	}
}

func chosenByLabels(s *apiServer) {
	t := s.t
	s.Define("networking.istio.io", "Sidecar", "sidecars", "v1")
	s.Put("networking.istio.io/sidecars", fakekube.Object("shop", "s", `{}`))
	w := s.mirrors(chosen, "  guard: {percent: 100}\n")
	w.synced()
	w.serves("ServiceEntry pay/b", "ServiceEntry shop/a", "Sidecar shop/s")
	if k := w.detail(); k.Namespaces != 3 || k.Selected != 2 {
		t.Errorf("%d of %d namespaces", k.Selected, k.Namespaces)
	}
	// A namespace that is chosen brings what it has, and only the kinds that it may have something of
	// are listed anew.
	w.until("sidecars are watched", func() bool {
		return !s.NoStreams || s.Asked("/sidecars", "watch=true") > s.Asked("/sidecars", "sendInitialEvents")
	})
	sidecars, lists := s.Asked("/sidecars"), s.Asked("/serviceentries")
	s.Namespace("other", `{"mesh":"on"}`)
	w.serves("ServiceEntry other/c", "ServiceEntry pay/b", "ServiceEntry shop/a", "Sidecar shop/s")
	if s.Asked("/serviceentries") == lists || s.Asked("/sidecars") != sidecars {
		t.Errorf("sidecars were asked for %d times", s.Asked("/sidecars")-sidecars)
	}
	// One that is not any more takes all of it along.
	s.Namespace("shop", `{}`)
	w.serves("ServiceEntry other/c", "ServiceEntry pay/b")
	s.entry("shop/a", "changed.x")
	s.entry("pay/b2", "b.x")
	w.serves("ServiceEntry other/c", "ServiceEntry pay/b", "ServiceEntry pay/b2")
	s.Namespace("shop", `{"team":"a"}`)
	w.serves("ServiceEntry other/c", "ServiceEntry pay/b", "ServiceEntry pay/b2", "ServiceEntry shop/a", "Sidecar shop/s")
	// What comes before its namespace waits for it.
	s.entry("new/n", "n.x")
	s.entry("pay/b3", "b.x")
	w.until("the one after it is there", func() bool { return slices.Contains(w.has(), "ServiceEntry pay/b3") })
	s.Namespace("new", `{"mesh":"on"}`)
	w.until("it is there", func() bool { return slices.Contains(w.has(), "ServiceEntry new/n") })
	w.synced()
}

func TestNothingIsServedBeforeTheNamespacesAreKnown_K14(t *testing.T) {
	for code, reason := range map[int]string{403: "Forbidden", 404: "NotFound", 503: "ServiceUnavailable"} {
		inBubble(t, fmt.Sprint(code), func(t *testing.T) {
			s := choosing(t)
			s.Set(func() { s.Fault = failing("/api/v1/namespaces", code, reason) })
			w := s.mirrors(chosen, "")
			w.until("it was asked again and again", func() bool { return s.Asked("/api/v1/namespaces?") > 5 })
			if w.status().Synced || len(w.has()) > 0 || s.Asked("/serviceentries") > 0 {
				t.Errorf("served: %q", w.has())
			}
			if code == 403 {
				w.until("it is denied", func() bool {
					return w.status().State == upstreams.StateDenied && strings.Contains(w.status().LastError, "Namespace")
				})
				w.until("the journal tells it", func() bool {
					all := w.events(events.Denied)
					return len(all) == 1 && strings.Contains(all[0], "Namespace")
				})
			}
			s.Set(func() { s.Fault = nil })
			w.synced()
			w.serves("ServiceEntry pay/b", "ServiceEntry shop/a")
		})
	}
}

func TestNamespacesThatCanNotBeReadAnyMoreRemoveNothing_K4(t *testing.T) {
	for code, reason := range map[int]string{401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 410: "Gone", 500: "InternalError"} {
		inBubble(t, fmt.Sprint(code), func(t *testing.T) {
			s := choosing(t)
			w := s.mirrors(chosen, "  guard: {percent: 100}\n")
			w.synced()
			w.serves("ServiceEntry pay/b", "ServiceEntry shop/a")
			s.Set(func() { s.Fault = failing("/api/v1/namespaces", code, reason) })
			s.Compact()
			s.drop()
			asked := s.Asked("/api/v1/namespaces?")
			w.until("it was asked again and again", func() bool { return s.Asked("/api/v1/namespaces?") > asked+5 })
			w.serves("ServiceEntry pay/b", "ServiceEntry shop/a")
			s.entry("shop/a2", "a.x")
			w.serves("ServiceEntry pay/b", "ServiceEntry shop/a", "ServiceEntry shop/a2")
			s.Set(func() { s.Fault = nil })
			s.Namespace("pay", `{}`)
			w.serves("ServiceEntry shop/a", "ServiceEntry shop/a2")
			w.synced()
		})
	}
}

func TestANamespaceThatLosesItsLabelGoesThroughTheGuard_K5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := choosing(t)
		for i := range 20 {
			s.entry(fmt.Sprintf("shop/a%02d", i), "a.x")
		}
		w := s.mirrors(chosen, "")
		w.synced()
		w.until("all is served", func() bool { return len(w.has()) == 22 })
		s.Namespace("shop", `{}`)
		w.until("deletions are held", func() bool { return w.status().Held != nil })
		if n := len(w.has()); n < 12 {
			t.Errorf("%d are served", n)
		}
		s.Namespace("shop", `{"mesh":"on"}`)
		w.until("nothing is held any more", func() bool { return w.status().Held == nil && len(w.has()) == 22 })
	})
}

func TestIngressesOfNamespacesThatAreNotChosenAreNotConverted_K14(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := ingressServer(t)
		s.Define("", "Namespace", "namespaces", "v1")
		s.Namespace("shop", `{}`)
		w := s.mirrors(strict+`, discoverySelectors: ["mesh=on"]`, "  guard: {percent: 100}\n")
		w.synced()
		w.serves()
		s.Namespace("shop", `{"mesh":"on"}`)
		w.serves(converted...)
		s.Namespace("shop", `{}`)
		w.serves()
		s.Namespace("shop", `{"mesh":"on"}`)
		w.serves(converted...)
	})
}

func TestNamespacesAloneAreNotAllThatThereIs_K2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := choosing(t)
		s.Set(func() { s.Fault = failing("/serviceentries", 403, "Forbidden") })
		w := s.mirrors(chosen, "")
		w.until("it is denied", func() bool { return w.status().State == upstreams.StateDenied })
		w.until("it was asked again and again", func() bool { return s.Asked("/serviceentries") > 5 })
		if w.status().Synced {
			t.Error("it has synced with nothing")
		}
		s.Set(func() { s.Fault = nil })
		w.synced()
		w.serves("ServiceEntry pay/b", "ServiceEntry shop/a")
	})
}

// The limit is for what is mirrored: it bounds the list of namespaces as a whole, not what is in it.
func TestNamespacesAreAllKnownWhateverTheLimits_K14(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.Define("", "Namespace", "namespaces", "v1")
		for i := range 30 {
			s.Put("/namespaces", fakekube.Object("", fmt.Sprintf("n%02d", i), `{}`, `{"metadata":{"labels":{"mesh":"on"},"annotations":{"long":"`+strings.Repeat("a", 2000)+`"}}}`))
		}
		s.entry("n29/a", "a.x")
		w := s.mirrors(chosen, "  limits: {maxBytes: 12000}\n")
		w.synced()
		w.serves("ServiceEntry n29/a")
		if d := w.detail(); d.Namespaces != 30 || d.Selected != 30 {
			t.Errorf("%d of %d namespaces", d.Selected, d.Namespaces)
		}
	})
}

func TestTooManyNamespacesAreAnErrorUntilTheLimitIsRaised_K9(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.Define("", "Namespace", "namespaces", "v1")
		for i := range 30 {
			s.Namespace(fmt.Sprintf("n%02d", i), `{"mesh":"on","long":"`+strings.Repeat("a", 400)+`"}`)
		}
		s.entry("n01/a", "a.x")
		s.entry("n29/a", "a.x")
		w := s.mirrors(chosen, "  limits: {maxBytes: 12000}\n")
		w.until("the list is an error", func() bool {
			return strings.Contains(w.status().LastError, "core/Namespace: ") && strings.Contains(w.status().LastError, "limits.maxBytes of the upstream (12000)")
		})
		if w.status().Synced || len(w.has()) > 0 {
			t.Errorf("served: %q", w.has())
		}
		w.reload(chosen, "  limits: {maxBytes: 1200000}\n")
		w.synced()
		w.serves("ServiceEntry n01/a", "ServiceEntry n29/a")
	})
}

func TestANamespaceThatCanNotBeUsedIsNamed_K9(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := choosing(t)
		w := s.mirrors(chosen, "")
		w.synced()
		s.Namespace("shop", `{"mesh":1}`)
		s.Namespace("new", `{"mesh":1}`)
		w.until("both are named", func() bool {
			notes := strings.Join(w.status().Notes, "\n")
			return strings.Contains(notes, "Namespace new: metadata.labels") && strings.Contains(notes, "Namespace shop: metadata.labels")
		})
		w.serves("ServiceEntry pay/b", "ServiceEntry shop/a")
	})
}
