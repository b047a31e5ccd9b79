package ui

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/admin"
	"meshrelay/downstream"
	"meshrelay/events"
	"meshrelay/federation/conflicts"
	"meshrelay/internal/buildinfo"
	"meshrelay/mirror"
	"meshrelay/services"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/clusters"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	serviceEntry = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
	testNow      = time.Date(2026, 11, 21, 3, 14, 7, 0, time.UTC)
)

// fixture is Pages and what they show.
type fixture struct {
	*Pages
	*mirror.Store
	lookups   int          // reads of single resources
	looks     atomic.Int64 // reads of all upstreams
	ready     admin.Readiness
	ups       []upstreams.Status
	clients   []downstream.ClientStatus
	contests  []conflicts.KeyConflict
	hosts     []conflicts.HostConflict
	held      []intake.HeldUpstream
	revisions []state.Revision
	clusters  []clusters.Status
	explained *admin.Explanation
	services  services.Answer
	asked     url.Values // of services
	journal   []events.Event
	changes   atomic.Uint64
	apart     string
}

func (f *fixture) Resolve(key mirror.Key) mirror.Resolution {
	f.lookups++
	if r := f.Get(key); r != nil {
		return mirror.Resolution{Copies: []mirror.Copy{{Source: r.Source(), Resource: r}}, Served: r}
	}
	return mirror.Resolution{}
}

func (f *fixture) events(q events.Query) (page events.Page) {
	for _, e := range f.journal {
		switch {
		case e.Tool && q.NoTools:
			page.Tools++
		case len(page.Events) < q.Limit:
			page.Events = append(page.Events, e)
		}
	}
	return page
}

func (f *fixture) Clients() []downstream.ClientStatus { return f.clients }
func (f *fixture) Readiness() admin.Readiness         { return f.ready }
func (f *fixture) Version() admin.Version {
	return admin.Version{Info: buildinfo.Info{Version: "v1.2.3"}, Name: "hub", Started: testNow.Add(-time.Hour)}
}

// newFixture returns a fixture with n resources in two upstreams.
func newFixture(t testing.TB, n int) *fixture {
	t.Helper()
	f := &fixture{Store: mirror.NewStore(), ready: admin.Readiness{Ready: true}}
	all := make([]*mirror.Resource, n)
	for i := range all {
		body, err := anypb.New(&networking.ServiceEntry{Hosts: []string{fmt.Sprintf("host-%d.example.com", i)}, Resolution: networking.ServiceEntry_DNS})
		if err != nil {
			t.Fatal(err)
		}
		key := mirror.Key{Kind: serviceEntry, Namespace: fmt.Sprintf("team-%d", i%100), Name: fmt.Sprintf("service-%d", i)}
		if all[i], err = mirror.New(mirror.Spec{Key: key, Source: []string{"east", "west"}[i%2], Body: body, CreateTime: testNow}); err != nil {
			t.Fatal(err)
		}
	}
	f.Begin(all)
	f.ups = []upstreams.Status{
		{Name: "east", Type: "xds", State: upstreams.StateSynced, Since: testNow.Add(-time.Hour), Status: intake.Status{Synced: true, LastUpdate: testNow}, Address: "east:15010", Resources: map[string]int{serviceEntry.String(): n / 2}},
		{Name: "west", Type: "xds", State: upstreams.StateSynced, Since: testNow.Add(-time.Hour), Status: intake.Status{Synced: true, LastUpdate: testNow}, Address: "west:15010", Resources: map[string]int{serviceEntry.String(): n / 2}},
	}
	f.explained = &admin.Explanation{Key: mirror.Key{Kind: serviceEntry, Namespace: "team-1", Name: "service-1"}, Outcome: admin.Served, Source: "east"}
	f.services = services.Answer{Services: []services.Service{{Host: "db.shop.svc.cluster.local"}}}
	var err error
	f.Pages, err = New(Data{
		Resources: f, Clients: f, Upstreams: func() []upstreams.Status { f.looks.Add(1); return f.ups }, Explain: func(url.Values) (*admin.Explanation, error) { return f.explained, nil },
		Services: func(q url.Values) (services.Answer, error) { f.asked = q; return f.services, nil },
		Contests: func(...mirror.Kind) []conflicts.KeyConflict { return f.contests }, HostConflicts: func() []conflicts.HostConflict { return f.hosts },
		Conflicts: func() (keys, hosts int) { return len(f.contests), len(f.hosts) },
		Apart:     func(conflicts.HostConflict) string { return f.apart },
		Held:      func(string) ([]intake.HeldUpstream, error) { return f.held, nil }, History: func(string) ([]state.Revision, error) { return f.revisions, nil },
		Clusters: func() []clusters.Status { return f.clusters },
		Events:   f.events, Changes: f.changes.Load,
	})
	if err != nil {
		t.Fatal(err)
	}
	f.now = func() time.Time { return testNow }
	f.ShowServer(f)
	return f
}

// get returns a page.
func (f *fixture) get(t testing.TB, path string, headers ...string) (code int, body string, header http.Header) {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, Path+path, nil)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	f.ServeHTTP(w, r)
	return w.Code, w.Body.String(), w.Header()
}

// paths are the paths of all pages.
func paths() []string {
	return []string{
		"/", "/upstreams", "/upstreams/east", "/upstreams/east?q=service", "/events", "/events/1", "/resources", "/resources?q=service-99&upstream=west",
		"/resources?q=host-99999&in=names+and+content", "/resource?kind=se&namespace=team-1&name=service-1", "/services", "/services?q=db", "/service?host=db.shop.svc.cluster.local", "/clients", "/clients?state=not+up+to+date", "/client?id=client-7", "/conflicts",
	}
}
