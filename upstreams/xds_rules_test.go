package upstreams_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/internal/testing/fakexds"
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
	if n := len(s.x.Status().Refused); n == 0 || n > 100 {
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
