package mirror

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// journal is a handler that writes changes of the merged view down.
type journal struct {
	mu   sync.Mutex
	said []string
}

func (j *journal) handle(c Change) {
	j.mu.Lock()
	defer j.mu.Unlock()
	line := "update " + c.Key.Name
	switch {
	case !c.Visible():
		return
	case c.Old == nil:
		line = "add " + c.Key.Name
	case c.New == nil:
		line = "delete " + c.Key.Name
	}
	if c.New != nil {
		line += " from " + c.New.Source()
	}
	j.said = append(j.said, line)
}

func (j *journal) take() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := strings.Join(j.said, ", ")
	j.said = nil
	return s
}

// inBubble runs f in a synctest bubble with a context that ends with it.
func inBubble(t *testing.T, f func(ctx context.Context, t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); synctest.Wait() }()
		f(ctx, t)
	})
}

func start(ctx context.Context, t *testing.T, run func(context.Context) error) {
	go func() {
		if err := run(ctx); err != nil {
			t.Error(err)
		}
	}()
}

func TestListIsSortedAndByNamespace(t *testing.T) {
	s := NewStore()
	for _, name := range []string{"c", "a", "b"} {
		s.Put(entry(t, "east", name, name))
	}
	var names []string
	for _, r := range s.List(serviceEntries, "") {
		names = append(names, r.FullName())
	}
	if got := strings.Join(names, " "); got != "shop/a shop/b shop/c" {
		t.Errorf("listed %s", got)
	}
	if n := len(s.List(serviceEntries, "other")); n != 0 {
		t.Errorf("%d in another namespace", n)
	}
	if s.Counts()[serviceEntries] != 3 {
		t.Errorf("counts %v", s.Counts())
	}
}

func TestEqualContentIsKeptOnce(t *testing.T) {
	s := NewStore()
	first, changed := s.Put(decodeSE(t, nil))
	if !changed {
		t.Error("the first is no change")
	}
	again, changed := s.Put(decodeSE(t, nil))
	if changed || again != first {
		t.Error("the same content is a change, or is held twice")
	}
	touched := decodeSE(t, nil).withSourceVersion("8")
	got, changed := s.Put(touched)
	if changed || got.SourceVersion() != "8" || &got.entry[0] != &first.entry[0] {
		t.Errorf("source version %q, changed %v, bytes shared %v", got.SourceVersion(), changed, &got.entry[0] == &first.entry[0])
	}
}

func TestHandlersSeeTheDifferenceSinceTheirLastEvent(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T) {
		a, s := NewAggregate(), NewStore()
		a.SetSources([]Source{{"east", s}})
		var all journal
		a.RegisterHandler(all.handle)
		r := entry(t, "east", "a", "1.example")
		s.Put(r)
		s.Put(entry(t, "east", "b", "1.example"))
		s.Remove(r.Key()) // before anybody was told of it
		s.Put(entry(t, "east", "b", "2.example"))
		s.SetSynced()
		if IsClosed(a.Synced()) {
			t.Error("synced before the handlers were told")
		}
		start(ctx, t, a.Run)
		synctest.Wait()
		if got := all.take(); got != "add b from east" {
			t.Errorf("told %q", got)
		}
		if !IsClosed(a.Synced()) {
			t.Error("not synced")
		}
		s.Put(entry(t, "east", "b", "3.example"))
		synctest.Wait()
		s.Remove(entry(t, "east", "b", "").Key())
		synctest.Wait()
		if got := all.take(); got != "update b from east, delete b" {
			t.Errorf("told %q", got)
		}
	})
}

func TestHandlersRunInOrderAndTheStoreIsAsNew(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T) {
		a, s := NewAggregate(), NewStore()
		a.SetSources([]Source{{"east", s}})
		var order []string
		for _, name := range []string{"first", "second"} {
			a.RegisterHandler(func(c Change) {
				order = append(order, name)
				if got := s.Get(c.Key); !got.Equal(c.New) {
					t.Errorf("told of %s, the store has %s", c.New.Version(), got.Version())
				}
			})
		}
		start(ctx, t, a.Run)
		s.Put(entry(t, "east", "a", "1.example"))
		synctest.Wait()
		if got := strings.Join(order, " "); got != "first second" {
			t.Errorf("ran %s", got)
		}
	})
}

func TestReadersShareWhatWritersReplace(t *testing.T) {
	a, s := NewAggregate(), NewStore()
	a.SetSources([]Source{{"east", s}})
	var events journal
	a.RegisterHandler(events.handle)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { a.Run(ctx) }) //nolint:errcheck // ends with ctx
	for w := range 2 {
		wg.Go(func() {
			for i := range 500 {
				s.Put(entry(t, "east", fmt.Sprint(i%7), fmt.Sprint(w, i)))
				if i%5 == 0 {
					s.Remove(entry(t, "east", fmt.Sprint(i%7), "").Key())
				}
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			for range 500 {
				for _, r := range s.List(serviceEntries, "") {
					if len(r.Frame()) == 0 || r.Metadata().Labels != nil {
						t.Error("a resource has changed")
					}
				}
			}
			cancel()
		})
	}
	wg.Wait()
}

func BenchmarkPut(b *testing.B) {
	same := []*Resource{entry(b, "east", "a", "1.example")}
	other := append(same, entry(b, "east", "a", "2.example"))
	for name, rs := range map[string][]*Resource{"unchanged": same, "changed": other} {
		b.Run(name, func(b *testing.B) {
			s := NewStore()
			b.ReportAllocs()
			for i := range b.N {
				s.Put(rs[i%len(rs)])
			}
		})
	}
}
