package upstreams_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

func isSynced(r *xdsRun) func() bool { return func() bool { return r.x.Status().Synced } }

func TestAnIstiodThatKnowsOneSpellingIsMirrored_C1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, url := range []string{xdsEntryURL, xdsEntryBeta, xdsEntryAlpha} {
			s := start(t, &fakexds.Server{})
			s.Set(url, xdsEntry("shop/a", "a"))
			r := runXDS(t, nil, s)
			r.awaitNames("shop/a")
			r.await("synced", isSynced(r))
		}
	})
}

func TestNodeSaysWhoWeAre_C2_C3_C12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &fakexds.Server{})
		runXDS(t, nil, s)
		first := s.Await("the first request", func(fakexds.Request) bool { return true })
		if want := "waypoint~10.0.0.7~relay-1.istio-system~istio-system.svc.cluster.local"; first.Node.GetId() != want {
			t.Errorf("id %q, want %q", first.Node.GetId(), want)
		}
		fields := first.Node.GetMetadata().GetFields()
		for k, want := range map[string]string{"GENERATOR": "api", "NAMESPACE": "istio-system", "CLUSTER_ID": "east-1"} {
			if got := fields[k].GetStringValue(); got != want {
				t.Errorf("%s is %q, want %q", k, got, want)
			}
		}
		if first.TypeURL != xdsMeshURL {
			t.Errorf("the first type is %s", first.TypeURL)
		}
	})
}

func TestADeletedWorkloadGroupDisappearsWithinOneResync_C4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &fakexds.Server{})
		s.Set(xdsGroupURL, fakexds.MCP("shop/g", &networking.WorkloadGroup{Template: &networking.WorkloadEntry{}}))
		r := runXDS(t, func(u *config.Upstream) { sectionOf(*u).ResyncInterval = config.Duration(50 * time.Millisecond) }, s)
		groups := func() int { return r.x.Status().Resources["networking.istio.io/WorkloadGroup"] }
		r.await("the group is there", func() bool { return groups() == 1 })
		s.Set(xdsGroupURL) // and nothing is pushed
		r.await("the group is gone", func() bool { return groups() == 0 })
	})
}

// TestCompressedResponsesAreRefused: a small response could be large here.
func TestCompressedResponsesAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &fakexds.Server{Options: []grpc.ServerOption{
			grpc.RPCCompressor(grpc.NewGZIPCompressor()), //nolint:staticcheck // the other way is for the whole process
		}})
		s.Set(xdsEntryURL, xdsEntry("shop/a", "a"))
		refused := runXDS(t, nil, s)
		refused.await("the stream ends", func() bool { return strings.Contains(refused.x.Status().LastError, "gzip") })
		if n := refused.x.Status().Resources["networking.istio.io/ServiceEntry"]; n != 0 {
			t.Errorf("%d resources were taken", n)
		}
	})
}

func TestTheNACKNamesTheBadOnes_C7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &fakexds.Server{})
		s.Set(xdsEntryURL, xdsEntry("shop/a", "a"), corrupt("shop/b"), xdsEntry("shop/c", "c"))
		r := runXDS(t, nil, s)
		nack := s.Await("a NACK", func(q fakexds.Request) bool { return q.ErrorWasGiven })
		if nack.TypeURL != xdsEntryURL || !strings.Contains(nack.Error, "shop/b") || nack.Version != "" {
			t.Errorf("NACK %+v", nack)
		}
		r.awaitNames("shop/a shop/c")
		r.await("synced nevertheless", isSynced(r))
	})
}

func TestReconnectLearnsOfAVanishedName_C14(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &fakexds.Server{Relay: true})
		a, b := xdsEntry("shop/a", "a").WithVersion("1"), xdsEntry("shop/b", "b").WithVersion("1")
		s.Set(xdsEntryURL, a, b)
		r := runXDS(t, func(u *config.Upstream) { sectionOf(*u).Protocol = "auto" }, s)
		r.awaitNames("shop/a shop/b")
		r.await("synced", isSynced(r))
		s.Set(xdsEntryURL, a)
		s.End(status.Error(codes.Unavailable, "restart"))
		r.awaitNames("shop/a")
		again := s.Await("the second subscription", func(q fakexds.Request) bool { return q.Stream == 2 && q.TypeURL == xdsEntryURL })
		if !again.Delta || again.Held["shop/a"] != "1" || again.Held["shop/b"] != "1" || len(again.Names) != 0 {
			t.Errorf("request %+v", again)
		}
		for _, q := range s.Requests() {
			if q.TypeURL == xdsEntryAlpha || q.TypeURL == xdsEntryBeta {
				t.Errorf("a relay was asked for %s too", q.TypeURL)
			}
		}
	})
}

func TestADisconnectTakesNothingAway_C16_C21(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &fakexds.Server{})
		s.Set(xdsEntryURL, xdsEntry("shop/a", "a"), xdsEntry("shop/b", "b"))
		r := runXDS(t, nil, s)
		r.awaitNames("shop/a shop/b")
		r.await("synced", isSynced(r))
		if st := r.x.Status(); !st.ContactLost.IsZero() {
			t.Errorf("in contact, and lost at %v", st.ContactLost)
		}
		s.Fail(status.Error(codes.Unavailable, "not ready"))
		ended := time.Now()
		s.End(status.Error(codes.Unavailable, "down"))
		r.await("disconnected", func() bool { return r.x.Status().State == upstreams.StateDisconnected })
		if st := r.x.Status(); !st.Synced || st.LastError == "" || r.names() != "shop/a shop/b" || !r.store.HasSynced() {
			t.Errorf("while it is down: %q, status %+v", r.names(), st)
		}
		if st := r.x.Status(); st.ContactLost.Before(ended) || st.ContactLost.After(time.Now()) {
			t.Errorf("contact lost at %v, ended at %v", st.ContactLost, ended)
		}
		s.Set(xdsEntryURL, xdsEntry("shop/b", "b2"), xdsEntry("shop/c", "c"))
		s.Fail(nil)
		r.awaitNames("shop/b shop/c")
		r.await("well again", func() bool {
			st := r.x.Status()
			return st.State == upstreams.StateSynced && st.LastError == "" && st.Reconnects == 1
		})
	})
}

func TestTheNextAddressIsUsedAndNothingIsLost_C16(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := start(t, &fakexds.Server{}), start(t, &fakexds.Server{})
		one.Set(xdsEntryURL, xdsEntry("shop/a", "a"))
		two.Set(xdsEntryURL, xdsEntry("shop/a", "a"), xdsEntry("shop/b", "b"))
		r := runXDS(t, nil, one, two)
		r.awaitNames("shop/a")
		r.await("synced", isSynced(r))
		one.Stop()
		r.awaitNames("shop/a shop/b")
		if st := r.x.Status(); st.Address != two.Addr {
			t.Errorf("address %s", st.Address)
		}
	})
}

func TestConnectionAgeDeletesNothing_C18(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &fakexds.Server{Options: []grpc.ServerOption{grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: 100 * time.Millisecond, MaxConnectionAgeGrace: 20 * time.Millisecond,
		})}})
		s.Set(xdsEntryURL, xdsEntry("shop/a", "a"))
		r := runXDS(t, nil, s)
		r.await("synced", isSynced(r))
		r.await("three streams", func() bool {
			if names := r.names(); names != "shop/a" {
				t.Fatalf("the store has %q in between", names)
			}
			return r.x.Status().Reconnects >= 2
		})
		if !r.x.Status().Synced {
			t.Error("not synced any more")
		}
	})
}

func TestADenialIsShownWithWhatToDo_C19_C20(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for code, hint := range map[codes.Code]string{codes.Unauthenticated: "tokenFile", codes.PermissionDenied: "ENABLE_XDS_API_GENERATOR_AUTH"} {
			s := start(t, &fakexds.Server{})
			s.Fail(status.Error(code, "no"))
			r := runXDS(t, nil, s)
			r.await(code.String(), func() bool {
				st := r.x.Status()
				return st.State == upstreams.StateDenied && !st.Synced && strings.Contains(st.LastError, hint)
			})
		}
	})
}

// TestADenialLastsUntilAnAnswer_C20: a server that refuses us lets each stream open first.
func TestADenialLastsUntilAnAnswer_C20(t *testing.T) {
	s := neverSynced(t, nil)
	denied := adsclient.State{Phase: adsclient.Denied, Address: "istiod:15012", Err: status.Error(codes.PermissionDenied, "no")}
	s.x.HandleState(denied)
	since := s.x.Status().Since
	for range 3 {
		s.x.HandleState(adsclient.State{Phase: adsclient.Connecting, Address: "istiod:15012"})
		s.open(adsclient.SotW, false)
		if st := s.x.Status(); st.State != upstreams.StateDenied || st.Since != since || st.LastError == "" {
			t.Errorf("between two denials: %s since %v (%v), error %q", st.State, st.Since, since, st.LastError)
		}
		s.x.HandleState(denied)
	}
	if n := s.warns.n.Load(); n != 1 {
		t.Errorf("%d warnings about one denial that goes on", n)
	}
	s.open(adsclient.SotW, false)
	s.x.HandleState(adsclient.State{Phase: adsclient.Connected, Address: "istiod:15012", Protocol: adsclient.SotW})
	if st := s.x.Status(); st.State != upstreams.StateSyncing || st.LastError != "" {
		t.Errorf("once it answers: %s, error %q", st.State, st.LastError)
	}
}

func TestSyncedMeansThatEveryTypeWasAnswered_C21(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, url := range []string{xdsMeshURL, xdsEntryAlpha, "networking.istio.io/v1/VirtualService"} {
			s := start(t, &fakexds.Server{})
			s.Set(xdsEntryURL, xdsEntry("shop/a", "a"))
			s.Withhold(url, true)
			r := runXDS(t, func(u *config.Upstream) { sectionOf(*u).ResyncInterval = config.Duration(50 * time.Millisecond) }, s)
			r.await("one is missing", func() bool {
				p := r.x.Status().Pending
				return len(p) == 1 && p[0] == url
			})
			if r.x.Status().Synced || r.store.HasSynced() {
				t.Errorf("%s: synced without it", url)
			}
			s.Withhold(url, false)
			r.await("synced", func() bool { return r.x.Status().Synced && r.store.HasSynced() && r.x.Status().Pending == nil })
		}
	})
}

func TestEachUpstreamKeepsItsMeshConfig_C22(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		domains := []string{"east.example", "west.example"}
		for _, domain := range domains {
			s := start(t, &fakexds.Server{})
			s.Set(xdsMeshURL, meshNamed(domain))
			r := runXDS(t, nil, s)
			r.await(domain, func() bool {
				res := r.store.Get(mirror.Key{Kind: mirror.MeshConfig, Name: mirror.MeshConfigName})
				if res == nil {
					return false
				}
				m := &mesh.MeshConfig{}
				return res.Body().UnmarshalTo(m) == nil && m.TrustDomain == domain
			})
		}
	})
}
