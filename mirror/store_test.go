package mirror

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// journal is a Handler that writes events down.
type journal struct {
	mu   sync.Mutex
	said []string
}

func (j *journal) handle(old, cur *Resource, e Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := cur
	if r == nil {
		r = old
	}
	line := string(e) + " " + r.Key().Name
	if cur != nil {
		line += " from " + cur.Source()
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

func TestWritesExpectAVersion(t *testing.T) {
	s := NewStore()
	a, b := entry(t, "east", "a", "1.example"), entry(t, "east", "a", "2.example")
	for _, step := range []struct {
		name string
		err  error
		want error
	}{
		{"update of what is not there", s.Update(a, "x"), ErrNotFound},
		{"delete of what is not there", s.Delete(a.Key(), "x"), ErrNotFound},
		{"create", s.Create(a), nil},
		{"create again", s.Create(b), ErrExists},
		{"update of another version", s.Update(b, b.Version()), ErrConflict},
		{"update", s.Update(b, a.Version()), nil},
		{"delete of another version", s.Delete(a.Key(), a.Version()), ErrConflict},
		{"delete", s.Delete(a.Key(), b.Version()), nil},
	} {
		if !errors.Is(step.err, step.want) {
			t.Errorf("%s: %v, want %v", step.name, step.err, step.want)
		}
	}
	if s.Get(a.Key()) != nil || len(s.Kinds()) != 0 {
		t.Error("something is left")
	}
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
		var all, virtual journal
		if err := errors.Join(a.RegisterEventHandler(Kind{}, all.handle), a.RegisterEventHandler(virtualServices, virtual.handle)); err != nil {
			t.Fatal(err)
		}
		r := entry(t, "east", "a", "1.example")
		s.Put(r)
		s.Put(entry(t, "east", "b", "1.example"))
		s.Remove(r.Key()) // before anybody was told of it
		s.Put(entry(t, "east", "b", "2.example"))
		s.SetSynced()
		if a.HasSynced() {
			t.Error("synced before the handlers were told")
		}
		start(ctx, t, a.Run)
		synctest.Wait()
		if got := all.take(); got != "add b from east" {
			t.Errorf("told %q", got)
		}
		if !a.HasSynced() {
			t.Error("not synced")
		}
		s.Put(entry(t, "east", "b", "3.example"))
		synctest.Wait()
		s.Remove(entry(t, "east", "b", "").Key())
		synctest.Wait()
		if got := all.take(); got != "update b from east, delete b" {
			t.Errorf("told %q", got)
		}
		if got := virtual.take(); got != "" {
			t.Errorf("the handler of another kind was told %q", got)
		}
		if err := a.RegisterEventHandler(Kind{}, all.handle); !errors.Is(err, ErrRunning) {
			t.Errorf("a late handler: %v", err)
		}
	})
}

func TestHandlersRunInOrderAndTheStoreIsAsNew(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T) {
		a, s := NewAggregate(), NewStore()
		a.SetSources([]Source{{"east", s}})
		var order []string
		for _, name := range []string{"first", "second"} {
			if err := a.RegisterEventHandler(Kind{}, func(_, cur *Resource, _ Event) {
				order = append(order, name)
				if got := s.Get(cur.Key()); !got.Equal(cur) {
					t.Errorf("told of %s, the store has %s", cur.Version(), got.Version())
				}
			}); err != nil {
				t.Fatal(err)
			}
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
	if err := a.RegisterEventHandler(Kind{}, events.handle); err != nil {
		t.Fatal(err)
	}
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
