package kubernetes

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	disk "meshrelay/state"
	"meshrelay/state/local"
)

// keeps runs an upstream of the server with a state directory, until end or the end of the test.
func (s *apiServer) keeps(dir, settings, more string) (w *world, end func()) {
	s.t.Helper()
	keeper := disk.Open(local.New(dir, slog.New(slog.DiscardHandler)), disk.Options{})
	w = s.upstream(settings, more, keeper)
	var ends []func()
	for _, run := range []func(context.Context) error{w.manager.Run, w.aggregate.Run, w.journal.Run, keeper.Run} {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx) }()
		ends = append(ends, func() {
			cancel()
			if err := <-ended; err != nil {
				s.t.Error(err)
			}
		})
	}
	end = sync.OnceFunc(func() {
		for _, end := range ends { // the keeper writes what the others leave
			end()
		}
	})
	s.t.Cleanup(end)
	return w, end
}

// Nothing is known of the namespaces after a restart but what is mirrored of them.
func TestANamespaceThatCanNotBeReadAfterARestartKeepsWhatItHas_K4(t *testing.T) {
	const settings, free = strict + chosen, "  guard: {percent: 100, empty: pass}\n"
	dir, s := t.TempDir(), ingressServer(t)
	s.Define("", "Namespace", "namespaces", "v1")
	s.Namespace("shop", `{"mesh":"on"}`)
	s.Namespace("pay", `{"team":"a"}`)
	s.entry("shop/a", "a.x")
	s.entry("pay/b", "b.x")
	before := append([]string{"ServiceEntry pay/b", "ServiceEntry shop/a"}, converted...)
	w, end := s.keeps(dir, settings, free)
	w.synced()
	w.serves(before...)
	end()

	s.Namespace("shop", `{"mesh":1}`)
	s.Namespace("new", `{"mesh":1}`)
	s.entry("new/n", "n.x")
	w, _ = s.keeps(dir, settings, free)
	w.synced()
	w.serves(before...)
	if d := w.detail(); d.Selected != 2 || d.NamespaceProblemsTotal != 2 || !strings.HasPrefix(d.NamespaceProblems[1], "Namespace shop: metadata.labels") {
		t.Errorf("%d are selected, %q", d.Selected, d.NamespaceProblems)
	}
	// Its objects are followed, and so are its labels when they can be read.
	s.Remove(entries, "shop/a")
	s.entry("shop/a2", "a.x")
	w.serves(append([]string{"ServiceEntry pay/b", "ServiceEntry shop/a2"}, converted...)...)
	s.Namespace("shop", `{"mesh":"off"}`)
	w.serves("ServiceEntry pay/b")
	s.Namespace("new", `{"mesh":"on"}`)
	w.serves("ServiceEntry new/n", "ServiceEntry pay/b")
	w.eventually("all can be used", func() bool { return w.detail().NamespaceProblemsTotal == 0 })
}

// What is on disk is not decoded again, but for objects of which fields are left out.
func TestUnknownFieldsAreKnownAfterARestart_K9(t *testing.T) {
	dir, s := t.TempDir(), newAPIServer(t)
	s.entry("shop/a", "a.x", `{"spec":{"fresh":1}}`)
	s.entry("shop/b", "b.x")
	for range 3 {
		w, end := s.keeps(dir, "", "")
		w.synced()
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
		w.eventually("one has unknown fields", func() bool { return w.detail().UnknownFields == 1 })
		end()
	}
	s.entry("shop/a", "a.x")
	w, _ := s.keeps(dir, "", "")
	w.synced()
	if n := w.detail().UnknownFields; n != 0 {
		t.Errorf("%d have unknown fields", n)
	}
}
