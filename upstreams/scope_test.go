package upstreams

import (
	"slices"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/internal/fakexds"
	"meshrelay/mirror"
	"meshrelay/state"
)

var shopOnly = func(u *config.Upstream, _ *config.Node) { u.Import.Namespaces.Include = []string{"shop"} }

func TestConfigWithoutItsNamespaceIsRefusedByName_C7(t *testing.T) {
	for _, protocol := range []string{"sotw", "delta"} {
		s := newXDSScript(t, shopOnly)
		send := func(resources ...fakexds.Resource) error {
			if protocol == "sotw" {
				return s.sotw(xdsEntryURL, resources...)
			}
			return s.delta(xdsEntryURL, nil, resources...)
		}
		s.ok(send(xdsEntry("shop/a", "a")))
		err := send(xdsEntry("shop/a", "a"), xdsEntry("/evil", "db.payments"), xdsEntry("shop/b", "b"))
		if err == nil || !strings.Contains(err.Error(), "/evil") || !strings.Contains(err.Error(), "namespace") {
			t.Errorf("%s: the NACK is %v", protocol, err)
		}
		s.holds("shop/a=a", "shop/b=b")
		if st := s.x.Status(); st.RefusedTotal != 1 || !strings.Contains(st.Refused[0].Resource, "/evil") {
			t.Errorf("%s: refused %+v", protocol, st.Refused)
		}
	}
}

const xdsWidgetURL = "example.com/v1/Widget"

func widgetsToo(u *config.Upstream, _ *config.Node) { u.XDS.Types = []string{xdsWidgetURL} }

func TestUnknownKindWithoutANamespaceIsImportedOnlyWhereNoneIsIncluded(t *testing.T) {
	kind := mirror.Kind{Group: "example.com", Kind: "Widget"}
	s := newXDSScript(t, widgetsToo)
	s.ok(s.sotw(xdsWidgetURL, xdsEntry("/w", "w"), xdsEntry("shop/w", "w")))
	if got := s.store.List(kind, ""); len(got) != 2 {
		t.Errorf("without rules %d of 2 are imported", len(got))
	}
	s = newXDSScript(t, widgetsToo, shopOnly)
	s.ok(s.sotw(xdsWidgetURL, xdsEntry("/w", "w"), xdsEntry("shop/w", "w")))
	if got := s.store.List(kind, ""); len(got) != 1 || got[0].FullName() != "shop/w" {
		t.Errorf("with an include list: %v", got)
	}
	left := s.x.LeftOut()
	if !slices.ContainsFunc(left, func(l LeftOut) bool { return l.Name == "w" && l.Namespace == "" && l.Reason == "namespace" }) {
		t.Errorf("left out: %+v", left)
	}
}

func TestWhatADiskHasWithoutANamespaceIsNotServedWhereOneIsIncluded(t *testing.T) {
	kind := mirror.Kind{Group: "example.com", Kind: "Widget"}
	before := newXDSScript(t, widgetsToo)
	before.ok(before.sotw(xdsWidgetURL, xdsEntry("/w", "w"), xdsEntry("shop/w", "w")))
	saved := savedOf(before, time.Now())
	u, node := xdsConfig("127.0.0.1:1")
	widgetsToo(&u, &node)
	shopOnly(&u, &node)
	for name, frozen := range map[string]*state.Frozen{"frozen": {}, "following": nil} {
		saved := saved
		saved.Meta.Frozen = frozen
		keeper := &memoryKeeper{saved: map[string]state.Saved{"east": saved}, at: map[uint64][]state.Record{3: saved.Records}}
		r := runManager(t, keeper, u)
		check := func() {
			t.Helper()
			r.await("shop/w is served", func() bool { return len(r.aggregate.List(kind, "shop")) == 1 })
			if got := r.aggregate.List(kind, ""); len(got) != 1 {
				t.Errorf("%s: %v", name, got)
			}
		}
		check()
		changes, _ := keeper.followed["east"].TakeChanges()
		if !slices.ContainsFunc(changes, func(c state.Change) bool { return c.Key.Namespace == "" && c.Record == nil }) {
			t.Errorf("%s: it stays on the disk: %v", name, changes)
		}
		if _, err := r.m.Rollback(t.Context(), "east", Order{To: 3}); err != nil {
			t.Fatal(err)
		}
		check()
	}
}
