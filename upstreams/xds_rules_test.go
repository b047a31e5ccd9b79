package upstreams

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/fakexds"
	"meshrelay/mirror"
)

// rewrapped returns a resource's element with another body.
func rewrapped(r fakexds.Resource, body *anypb.Any) *anypb.Any {
	m := &mcp.Resource{}
	if err := r.Any.UnmarshalTo(m); err != nil {
		panic(err)
	}
	m.Body = body
	a, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return a
}

func TestEveryServedVersionIsAskedFor_C1(t *testing.T) {
	urls := subscriptions(false, []string{"example.com/v1/Widget"})
	if urls[0] != xdsMeshURL {
		t.Errorf("the first is %s", urls[0])
	}
	for _, info := range mirror.Kinds() {
		for _, url := range info.TypeURLs() {
			if !slices.Contains(urls, url) {
				t.Errorf("%s is not asked for", url)
			}
		}
	}
	if !slices.Contains(urls, "example.com/v1/Widget") {
		t.Error("the type from the config is not asked for")
	}
	if n := len(slices.Compact(slices.Sorted(slices.Values(urls)))); n != len(urls) {
		t.Errorf("%d types, %d of them different", len(urls), n)
	}
}

func TestARelayIsAskedForOneVersionOfEachKind_C1(t *testing.T) {
	extra := []string{"example.com/v2/Widget", "example.com/v1/Widget", xdsEntryAlpha}
	kinds := map[mirror.Kind]string{}
	for _, url := range subscriptions(true, extra) {
		kind, _, err := mirror.ParseTypeURL(url)
		if err != nil {
			t.Fatal(err)
		}
		if have := kinds[kind]; have != "" {
			t.Errorf("both %s and %s are asked for", have, url)
		}
		kinds[kind] = url
	}
	if got := kinds[xdsEntryKind]; got != xdsEntryURL {
		t.Errorf("ServiceEntries are asked for as %s", got)
	}
	if got := kinds[mirror.Kind{Group: "example.com", Kind: "Widget"}]; got != extra[0] {
		t.Errorf("Widgets are asked for as %s", got)
	}
}

func TestSpellingsAreUnitedByKey_C1(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryAlpha, xdsEntry("shop/a", "old.a"), xdsEntry("shop/b", "old.b")))
	s.holds("shop/a=old.a", "shop/b=old.b")
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "new.a"), xdsEntry("shop/c", "new.c")))
	s.holds("shop/a=new.a", "shop/b=old.b", "shop/c=new.c")
	// An older spelling does not get in the way of a newer one.
	s.ok(s.sotw(xdsEntryBeta, xdsEntry("shop/a", "beta.a"), xdsEntry("shop/b", "beta.b")))
	s.holds("shop/a=new.a", "shop/b=beta.b", "shop/c=new.c")
}

func TestAKeyVanishesOnlyWhenNoSpellingHasIt_C1(t *testing.T) {
	s := newXDSScript(t)
	for _, url := range []string{xdsEntryURL, xdsEntryBeta, xdsEntryAlpha} {
		s.ok(s.sotw(url, xdsEntry("shop/a", "a")))
	}
	s.ok(s.sotw(xdsEntryURL))
	s.ok(s.sotw(xdsEntryBeta))
	s.holds("shop/a=a")
	s.ok(s.sotw(xdsEntryAlpha))
	s.lapse()
	s.holds()
}

// TestWhatAVersionLosesMayTurnUpInAnother_C1: an istiod that is upgraded behind a stream
// says that the old version is empty before it fills the new one.
func TestWhatAVersionLosesMayTurnUpInAnother_C1(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryAlpha, xdsEntry("shop/a", "a"), xdsEntry("shop/b", "b")))
	s.ok(s.sotw(xdsEntryAlpha))
	s.holds("shop/a=a", "shop/b=b")
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a")))
	s.holds("shop/a=a", "shop/b=b")
	s.lapse()
	s.holds("shop/a=a")
}

func TestSameVersionNewBodyIsAChange_C5(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "before")))
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "after"))) // version_info and metadata.version are as they were
	s.holds("shop/a=after")
}

func TestOneBadBodyInThree_C7(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a1"), xdsEntry("shop/b", "b1"), xdsEntry("shop/c", "c1")))
	for range 2 { // the second is byte for byte the first, and as bad
		err := s.sotw(xdsEntryURL, xdsEntry("shop/a", "a2"), corrupt("shop/b"), xdsEntry("shop/c", "c2"))
		if err == nil || !strings.Contains(err.Error(), "shop/b") || strings.Contains(err.Error(), "shop/a") {
			t.Fatalf("error %v: want one that names shop/b alone", err)
		}
		s.holds("shop/a=a2", "shop/b=b1", "shop/c=c2")
		st := s.x.Status()
		if st.RefusedTotal != 1 || len(st.Refused) != 1 || !strings.Contains(st.Refused[0].Resource, "shop/b") || st.Refused[0].Reason == "" {
			t.Fatalf("refused %+v of %d", st.Refused, st.RefusedTotal)
		}
	}
	if n := s.x.Status().NACKs; n != 2 {
		t.Errorf("%d NACKs", n)
	}
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a2"), xdsEntry("shop/b", "b1"), xdsEntry("shop/c", "c2")))
	if st := s.x.Status(); st.RefusedTotal != 0 {
		t.Errorf("still refused, though good again: %+v", st.Refused)
	}
	if err := s.sotw(xdsEntryURL, xdsEntry("shop/a", "a2"), corrupt("shop/b")); err == nil {
		t.Fatal("no error")
	}
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a2")))
	s.holds("shop/a=a2")
	if st := s.x.Status(); st.RefusedTotal != 0 {
		t.Errorf("still refused, though gone: %+v", st.Refused)
	}
}

func TestAnElementWithoutAReadableNameDeletesNothing_C7(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a1"), xdsEntry("shop/b", "b1")))
	err := s.sotw(xdsEntryURL, xdsEntry("shop/a", "a2"), unreadable())
	if err == nil || !strings.Contains(err.Error(), "nothing is removed") {
		t.Fatalf("error %v", err)
	}
	s.holds("shop/a=a2", "shop/b=b1")
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a2")))
	s.holds("shop/a=a2")
}

func TestOfDuplicateNamesTheFirstIsKept_C7(t *testing.T) {
	s := newXDSScript(t)
	for range 2 {
		err := s.sotw(xdsEntryURL, xdsEntry("shop/a", "first"), xdsEntry("shop/a", "second"))
		if err == nil || !strings.Contains(err.Error(), "shop/a") || !strings.Contains(err.Error(), "twice") {
			t.Fatalf("error %v", err)
		}
		s.holds("shop/a=first")
	}
}

func TestBadNamesAreRefused_C7(t *testing.T) {
	s := newXDSScript(t)
	for _, name := range []string{"x", "a/b/c", "shop/", strings.Repeat("n", 300) + "/" + strings.Repeat("n", 300)} {
		if err := s.sotw(xdsEntryURL, xdsEntry("shop/a", "a"), xdsEntry(name, "x")); err == nil {
			t.Errorf("%q is accepted", name)
		}
		s.holds("shop/a=a")
	}
}

func TestWhatIsSaidOfBadResourcesIsBounded_C7(t *testing.T) {
	s := newXDSScript(t)
	var bad []fakexds.Resource
	for i := range 5000 {
		bad = append(bad, corrupt(fmt.Sprintf("shop/%s-%d", strings.Repeat("n", 200), i)))
	}
	err := s.sotw(xdsEntryURL, bad...)
	if err == nil || len(err.Error()) > 16<<10 || !strings.Contains(err.Error(), "more") {
		t.Fatalf("the error has %d bytes", len(fmt.Sprint(err)))
	}
	if n := len(s.x.Status().Refused); n == 0 || n > maxRefused {
		t.Errorf("%d refusals are listed", n)
	}
}

func TestATypeThatNobodyAskedForIsRefused_C7(t *testing.T) {
	s := newXDSScript(t)
	for _, url := range []string{"example.com/v1/Widget", "nonsense"} {
		if err := s.sotw(url, xdsEntry("shop/a", "a")); err == nil || !strings.Contains(err.Error(), url) {
			t.Errorf("%s: error %v", url, err)
		}
	}
	if kinds := s.store.Kinds(); len(kinds) != 0 {
		t.Errorf("the store has %v", kinds)
	}
}

func TestFullStateReplacesTheType_C8(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a"), xdsEntry("shop/b", "b"), xdsEntry("shop/c", "c")))
	s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a"), xdsEntry("shop/c", "c")))
	s.holds("shop/a=a", "shop/c=c")
	s.ok(s.sotw(xdsEntryURL))
	s.lapse()
	s.holds()
}

func TestASuddenEmptyListIsSaidAloud_C8(t *testing.T) {
	s := newXDSScript(t)
	var many []fakexds.Resource
	for i := range 20 {
		many = append(many, xdsEntry(fmt.Sprintf("shop/%d", i), "x"))
	}
	s.ok(s.sotw(xdsEntryURL, many...))
	s.ok(s.sotw(xdsEntryURL, many[:19]...))
	if n := s.warns.n.Load(); n != 0 {
		t.Fatalf("%d warnings about ordinary changes", n)
	}
	s.ok(s.sotw(xdsEntryURL))
	s.lapse()
	if n := s.warns.n.Load(); n != 1 {
		t.Errorf("%d warnings about a list that is empty all of a sudden", n)
	}
}

func TestGeneratedObjectsAreLeftOut_C9(t *testing.T) {
	vs := "networking.istio.io/v1/VirtualService"
	for _, keep := range []bool{false, true} {
		s := newXDSScript(t, func(u *config.Upstream, _ *config.Node) {
			if keep {
				u.Generated, u.Services.Mode = config.GeneratedKeep, config.ServicesAsIs
			}
		})
		s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "a"), xdsEntry("shop/synthetic-db", "db")))
		s.ok(s.sotw(vs,
			fakexds.MCP("shop/db-0-istio-autogenerated-k8s-gateway", &networking.VirtualService{Hosts: []string{"a"}}),
			fakexds.MCP("shop/synthetic-by-a-user", &networking.VirtualService{Hosts: []string{"a"}})))
		counts, dropped := s.x.Status().Resources, s.x.Status().Dropped["generated"]
		if keep && (counts["networking.istio.io/ServiceEntry"] != 2 || counts["networking.istio.io/VirtualService"] != 2 || dropped != 0) {
			t.Errorf("keep: %v, %d left out", counts, dropped)
		}
		if !keep && (counts["networking.istio.io/ServiceEntry"] != 1 || counts["networking.istio.io/VirtualService"] != 1 || dropped != 2) {
			t.Errorf("drop: %v, %d left out", counts, dropped)
		}
		s.ok(s.sotw(vs))
		s.ok(s.sotw(xdsEntryURL))
		if n := s.x.Status().Dropped["generated"]; n != 0 {
			t.Errorf("%d left out of nothing", n)
		}
	}
}

func TestVersionsOfTwoUpstreamsAreNotCompared_C10(t *testing.T) {
	east := newXDSScript(t)
	west := newXDSScript(t, func(u *config.Upstream, _ *config.Node) { u.Name = "west" })
	same, other := xdsEntry("shop/a", "a"), xdsEntry("shop/b", "b") // both say that their version is 7
	key := func(name string) mirror.Key {
		return mirror.Key{Kind: xdsEntryKind, Namespace: "shop", Name: name}
	}
	east.ok(east.sotw(xdsEntryURL, same, other))
	west.ok(west.sotw(xdsEntryURL, same, xdsEntry("shop/b", "b2")))
	for _, name := range []string{"a", "b"} {
		e, w := east.store.Get(key(name)), west.store.Get(key(name))
		if e.Version() == w.Version() || e.Equal(w) {
			t.Errorf("%s: one version for two origins", name)
		}
		if e.SourceVersion() != "7" || w.SourceVersion() != "7" {
			t.Errorf("%s: the sources said %q and %q", name, e.SourceVersion(), w.SourceVersion())
		}
	}
}

func TestRevisionsAreFilteredHere_C11(t *testing.T) {
	for _, tc := range []struct {
		own, label string
		mirrored   bool
	}{
		{"", "", true}, {"", "blue", true}, {"blue", "", true}, {"blue", "blue", true}, {"blue", "green", false}, {"blue", "Blue", false},
	} {
		s := newXDSScript(t, func(u *config.Upstream, _ *config.Node) { u.Import.Revision = tc.own })
		s.ok(s.sotw(xdsEntryURL, revised("shop/a", tc.label)))
		n := s.x.Status().Resources["networking.istio.io/ServiceEntry"]
		if (n == 1) != tc.mirrored || (s.x.Status().Dropped["revision"] == 1) == tc.mirrored {
			t.Errorf("own revision %q, label %q: %d mirrored, left out %v", tc.own, tc.label, n, s.x.Status().Dropped)
		}
	}
}

func revised(name, revision string) fakexds.Resource {
	return fakexds.MCP(name, &networking.ServiceEntry{Hosts: []string{"a"}}, func(r *mcp.Resource) {
		if revision != "" {
			r.Metadata.Labels = map[string]string{"istio.io/rev": revision}
		}
	})
}

func TestAResourceThatChangesItsRevisionLeavesAndReturns_C11(t *testing.T) {
	s := newXDSScript(t, func(u *config.Upstream, _ *config.Node) { u.Import.Revision = "blue" })
	for range 3 {
		s.ok(s.sotw(xdsEntryURL, revised("shop/a", "blue")))
		s.holds("shop/a=a")
		s.ok(s.sotw(xdsEntryURL, revised("shop/a", "green")))
		s.holds()
	}
	if n := s.x.Status().Dropped["revision"]; n != 1 {
		t.Errorf("%d are left out", n)
	}
}

func TestTheOrderOfPushesDoesNotMatter_C13(t *testing.T) {
	var want string
	for seed := range uint64(30) {
		s := newXDSScript(t)
		pushes := []func(){
			func() { s.ok(s.sotw(xdsEntryURL, xdsEntry("shop/a", "new.a"))) },
			func() { s.ok(s.sotw(xdsEntryBeta)) },
			func() { s.ok(s.sotw(xdsEntryAlpha, xdsEntry("shop/a", "old.a"), xdsEntry("shop/b", "old.b"))) },
			func() { s.ok(s.sotw(xdsMeshURL, meshNamed("east.example"))) },
			func() {
				s.ok(s.sotw(xdsGroupURL, fakexds.MCP("shop/g", &networking.WorkloadGroup{Template: &networking.WorkloadEntry{}})))
			},
		}
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(pushes), func(i, j int) { pushes[i], pushes[j] = pushes[j], pushes[i] })
		for _, push := range pushes {
			push()
		}
		var got []string
		for _, kind := range s.store.Kinds() {
			for _, r := range s.store.List(kind, "") {
				got = append(got, r.Key().String()+"@"+r.Version())
			}
		}
		if all := strings.Join(got, "\n"); want == "" {
			want = all
		} else if all != want {
			t.Fatalf("order %d gives\n%s\nwant\n%s", seed, all, want)
		}
	}
}

func TestDeltaAddsChangesAndRemoves_C14(t *testing.T) {
	s := newXDSScript(t)
	s.open(adsclient.Delta, true)
	s.ok(s.delta(xdsEntryURL, nil, xdsEntry("shop/a", "a1").WithVersion("1"), xdsEntry("shop/b", "b1").WithVersion("1")))
	s.ok(s.delta(xdsEntryURL, []string{"shop/b", "shop/never-had"}, xdsEntry("shop/a", "a2").WithVersion("2"), xdsEntry("shop/c", "c1").WithVersion("1")))
	s.holds("shop/a=a2", "shop/c=c1")
	got := s.x.ResumeVersions(xdsEntryURL)
	if len(got) != 2 || got["shop/a"] != "2" || got["shop/c"] != "1" {
		t.Errorf("resumes with %v", got)
	}
	err := s.delta(xdsEntryURL, []string{"shop/c"}, corrupt("shop/a").WithVersion("3"))
	if err == nil || !strings.Contains(err.Error(), "shop/a") {
		t.Fatalf("error %v", err)
	}
	s.holds("shop/a=a2")
	if got := s.x.ResumeVersions(xdsEntryURL); got["shop/a"] != "" {
		t.Errorf("resumes with the version %q of what was refused", got["shop/a"])
	}
	s.ok(s.delta(xdsEntryURL, nil, xdsEntry("shop/a", "a4").WithVersion("4")))
	s.holds("shop/a=a4")
	if st := s.x.Status(); st.RefusedTotal != 0 {
		t.Errorf("still refused: %+v", st.Refused)
	}
}

func TestMeshConfigHasNoNameOnTheWire_C22(t *testing.T) {
	s := newXDSScript(t)
	key := mirror.Key{Kind: mirror.MeshConfig, Name: mirror.MeshConfigName}
	s.ok(s.sotw(xdsMeshURL, meshNamed("one")))
	first := s.store.Get(key)
	if first == nil {
		t.Fatal("there is none")
	}
	s.open(adsclient.Delta, false)
	s.ok(s.delta(xdsMeshURL, nil, meshNamed("two")))
	if second := s.store.Get(key); second == nil || second.Equal(first) {
		t.Errorf("delta gave %v", second)
	}
}
