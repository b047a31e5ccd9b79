package upstreams

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/state"
)

const virtualServiceURL = "networking.istio.io/v1/VirtualService"

var virtualServiceKind = mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}

// drops has everything go that has not been said for a while.
func drops(after time.Duration) config.Staleness {
	return config.Staleness{StaleAfter: config.Duration(after), OnStale: config.OnStaleDrop}
}

func (s *xdsScript) disconnects() {
	s.x.HandleState(adsclient.State{Phase: adsclient.Disconnected, Err: errors.New("gone"), Answered: true})
}

// answersAllBut opens a stream and answers with nothing what is asked for, but for some types.
func (s *xdsScript) answersAllBut(types ...string) {
	s.t.Helper()
	s.open(adsclient.SotW, false)
	for _, u := range subscriptions(false, nil) {
		if !strings.Contains(strings.Join(types, " ")+" ", u+" ") {
			s.ok(s.sotw(u))
		}
	}
}

// A slow link, or a server that never answers one type: what it has said a moment ago is not
// out of date.
func TestAKindThatIsSaidInFullDoesNotExpireBeforeTheSyncIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, stale(drops(5*time.Minute)))
		s.running()
		s.ok(s.sotw(xdsEntryURL, entries("e", 4)...))
		s.ok(s.sotw(virtualServiceURL, emptyOf(virtualServiceKind, "ns/g")))
		s.disconnects()
		s.after(time.Second)
		s.answersAllBut(xdsEntryURL, virtualServiceURL)
		s.ok(s.sotw(xdsEntryURL, entries("e", 4)...))
		s.after(time.Hour)
		s.demand("the ServiceEntries are there, the VirtualService is not", s.count() == 4 && s.store.Counts()[virtualServiceKind] == 0)
		s.disconnects()
		s.after(4 * time.Minute)
		s.demand("they are counted from the end of that stream", s.count() == 4)
		s.after(2 * time.Minute)
		s.demand("and expire", s.count() == 0 && s.x.Status().Expired[xdsEntryKind.String()] == 4)
		s.answersAllBut(xdsEntryURL, virtualServiceURL)
		s.ok(s.sotw(xdsEntryURL, entries("e", 4)...))
		s.demand("and are back as soon as they are said", s.count() == 4 && s.x.Status().Expired[xdsEntryKind.String()] == 0)
	})
}

// What moves to another API version in the middle of a sync is settled a second later.
func TestASyncThatSettlesLateIsContact_C1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, stale(drops(time.Minute)))
		s.running()
		s.ok(s.sotw(xdsEntryBeta, xdsEntry("ns/a", "a.example")))
		s.disconnects()
		s.open(adsclient.SotW, false)
		s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
		s.ok(s.sotw(xdsEntryURL))
		for _, u := range subscriptions(false, nil) {
			switch u {
			case xdsEntryURL:
			case xdsEntryBeta:
				s.ok(s.sotw(u, xdsEntry("ns/a", "a.example")))
			default:
				s.ok(s.sotw(u))
			}
		}
		s.lapse()
		s.after(2 * time.Minute)
		s.demand("it has said all, and is connected", s.count() == 1 && !s.x.Status().Stale)
	})
}

func TestASourceThatNeverSaidAllExpiresAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := never(t, stale(drops(5*time.Minute)))
		s.answersAllBut(xdsEntryURL, virtualServiceURL)
		s.ok(s.sotw(xdsEntryURL, entries("e", 4)...))
		s.disconnects()
		s.after(4 * time.Minute)
		s.demand("not yet", s.count() == 4)
		s.after(2 * time.Minute)
		s.demand("expired", s.count() == 0)
	})
}

func TestWhatSettlesAfterTheStreamHasEndedIsNotSaidAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, stale(drops(5*time.Minute)))
		s.running()
		s.ok(s.sotw(xdsEntryBeta, entries("b", 1)...))
		s.ok(s.sotw(xdsEntryURL, entries("e", 4)...))
		s.ok(s.sotw(xdsEntryBeta))
		s.disconnects()
		s.after(time.Second)
		s.lapse()
		s.after(time.Hour)
		s.demand("expired", s.count() == 0)
	})
}

func TestAKillDoesNotMakeTheLastContactMuchEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := stale(drops(30 * time.Second))
		s := newXDSScript(t, rule)
		s.ok(s.sotw(xdsEntryURL, entries("e", 4)...))
		var meta state.Meta
		for range 50 { // in contact throughout, and written down every second
			_, meta = s.x.gate.TakeChanges()
			time.Sleep(time.Second)
		}
		n := restored(t, state.Saved{Meta: meta, Records: s.x.kept()}, true, rule)
		n.demand("it was in contact a moment ago", n.count() == 4)
	})
}

func TestAtTheEndTheLastContactIsNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t)
		s.ok(s.sotw(xdsEntryURL, entries("e", 4)...))
		s.x.gate.TakeChanges()
		time.Sleep(50 * time.Second)
		s.x.end()
		if _, meta := s.x.gate.TakeChanges(); !meta.LastContact.Equal(time.Now()) {
			t.Errorf("the last contact was %v ago", time.Since(meta.LastContact))
		}
	})
}

func TestWhatARollbackServesHasNotExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, stale(drops(time.Minute)))
		s.running()
		s.ok(s.sotw(xdsEntryURL, entries("e", 4)...))
		then := s.x.kept()
		s.disconnects()
		s.after(2 * time.Minute)
		s.demand("dropped", s.count() == 0 && s.x.Status().Expired[xdsEntryKind.String()] == 4)
		s.x.gate.rollBack(Order{To: 1}, then)
		s.ok(s.x.restateAll(nil))
		s.demand("served", s.count() == 4 && len(s.x.Status().Expired) == 0)
	})
}

// Neither has anything returned while it was away.
func TestWhatWasDroppedReturnsByAResumeWithoutChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, 0), stale(drops(time.Minute)))
		s.running()
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		s.ok(s.sotw(xdsEntryURL, entries("e", 5)...))
		s.lapse()
		s.demand("35 are held", s.x.Status().Held != nil)
		s.disconnects()
		s.after(2 * time.Minute)
		s.demand("dropped", s.count() == 0)
		s.open(adsclient.Delta, false)
		for _, u := range subscriptions(false, nil) {
			s.ok(s.delta(u, nil))
		}
		s.demand("what it has is back", s.count() == 5 && s.x.Status().Held == nil && len(s.x.Status().Expired) == 0)
	})
}

func TestARelaxedPolicyAlsoBringsBackWhatWasDroppedWhenOtherRulesChangeWithIt(t *testing.T) {
	a := startServer(t, xdsEntry("ns/a", "a.example"))
	u := xdsUpstream("east", a)
	u.Staleness = drops(300 * time.Millisecond)
	r := runManager(t, nil, u)
	r.awaitServed("ns/a=a.example@east")
	a.Stop()
	r.awaitServed("")
	u.Staleness.OnStale = config.OnStaleKeep
	u.Rewrite.Labels.Set = map[string]string{"n": "1"}
	r.mustApply(u)
	r.awaitServed("ns/a=a.example@east")
}

func TestAReloadDoesNotMakeASourceOneThatNeverSynced(t *testing.T) {
	a := startServer(t, xdsEntry("ns/a", "a.example"))
	u := xdsUpstream("east", a)
	u.Required = true
	u.Staleness = config.Staleness{StaleAfter: config.Duration(time.Hour), OnStale: config.OnStaleKeep}
	r := runManager(t, nil, u)
	r.await("synced", func() bool { return r.m.Status()[0].Synced })
	a.Stop()
	r.await("disconnected", func() bool { return r.m.Status()[0].State != StateSynced })
	u.Rewrite.Labels.Set = map[string]string{"n": "1"}
	r.mustApply(u)
	if st := r.m.Status()[0]; st.Stale || !st.Synced {
		t.Errorf("synced %v, stale %v", st.Synced, st.Stale)
	}
}

// One document that can not be read does not make a directory that can be.
func TestADirectoryWithABrokenFileIsInContact(t *testing.T) {
	path := t.TempDir()
	writeFile(t, filepath.Join(path, "f.yaml"), serviceEntry("f", "f.example"))
	writeFile(t, filepath.Join(path, "bad.yaml"), "kind: [\n")
	u := fileUpstream("local", path)
	u.Required, u.Staleness = true, drops(time.Second)
	var saved state.Saved
	t.Run("after a reload", func(t *testing.T) {
		r := runManager(t, nil, u)
		r.awaitServed("shop/f=f.example@local")
		u := u
		u.Rewrite.Labels.Set = map[string]string{"n": "1"}
		r.mustApply(u)
		r.await("in contact", func() bool { return r.m.Status()[0].State == StateSynced && r.m.inContact("local") })
		saved = state.Saved{Meta: state.Meta{Synced: true, LastContact: time.Now(), Fingerprint: r.m.members[0].gate.fingerprint}, Records: r.m.members[0].source.kept()}
	})
	t.Run("after a restart", func(t *testing.T) {
		r := runManager(t, &memoryKeeper{saved: map[string]state.Saved{"local": saved}}, u)
		r.await("in contact", func() bool { return !r.m.Status()[0].Stale && r.m.inContact("local") })
		r.awaitServed("shop/f=f.example@local")
	})
}

func (m *Manager) inContact(name string) bool {
	one, err := m.member(name)
	if err != nil {
		return false
	}
	one.gate.mu.Lock()
	defer one.gate.mu.Unlock()
	return one.gate.stale.inContact
}

// Two servers that fail in turn, each in its own way.
func TestEachAddressIsComplainedAboutOnce(t *testing.T) {
	s := newXDSScript(t)
	fails := func(address, why string) {
		s.x.HandleState(adsclient.State{Phase: adsclient.Disconnected, Address: address, Err: errors.New(why)})
	}
	s.warns.n.Store(0)
	for range 100 {
		fails("a:1", "refused")
		fails("b:1", "no such host")
	}
	if n := s.warns.n.Load(); n != 2 {
		t.Errorf("%d warnings, want 2", n)
	}
	s.x.HandleState(adsclient.State{Phase: adsclient.Connected, Address: "a:1", Protocol: adsclient.SotW})
	fails("a:1", "refused")
	if n := s.warns.n.Load(); n != 3 {
		t.Errorf("%d warnings after it was there again, want 3", n)
	}
}

// The others must not have to do without the relay because of it.
func TestAMissingCertificateIsNoReasonNotToStart(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "f.yaml"), serviceEntry("f", "f.example"))
	gone := xdsUpstream("east", startServer(t))
	gone.XDS.Plaintext, gone.XDS.TLS = false, &config.TLS{CAFile: filepath.Join(dir, "gone.pem")}
	u := fileUpstream("local", filepath.Join(dir, "f.yaml"))
	r := runManager(t, nil, gone, u)
	r.awaitServed("shop/f=f.example@local")
	r.await("it is said which file", func() bool { return strings.Contains(r.m.Status()[0].LastError, "gone.pem") })
	other := *gone.XDS
	other.TLS = &config.TLS{CAFile: filepath.Join(dir, "also-gone.pem")}
	gone.XDS = &other
	if err := r.apply(gone, u); err == nil || !strings.Contains(err.Error(), "also-gone.pem") {
		t.Errorf("a reload with a missing certificate: %v", err)
	}
}

func TestARelaxedPolicyBringsBackWhatWasDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, stale(config.Staleness{StaleAfter: config.Duration(time.Minute), OnStale: "drop"}))
		s.running()
		s.ok(s.sotw(xdsEntryURL, entries("e", 4)...))
		s.disconnects()
		s.after(2 * time.Minute)
		s.demand("dropped", s.count() == 0)
		cfg, _ := xdsConfig("127.0.0.1:1")
		cfg.Staleness = config.Staleness{StaleAfter: config.Duration(time.Minute), OnStale: "keep"}
		if s.x.gate.setPolicy(cfg) {
			s.ok(s.x.restateAll(nil))
		}
		s.demand("kept again", s.count() == 4)
	})
}

func TestWhatWasWithheldReturnsAfterAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, stale(config.Staleness{StaleAfter: config.Duration(time.Minute), OnStale: "drop"}))
		s.running()
		s.ok(s.sotw(xdsEntryURL, entries("e", 4)...))
		s.disconnects()
		s.after(2 * time.Minute)
		n := successor(s, true)
		syncAll(n, xdsEntryURL, func() error { return n.sotw(xdsEntryURL, entries("e", 4)...) })
		n.demand("all", n.count() == 4)
	})
}
