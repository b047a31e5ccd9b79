package views

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/internal/identity"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func named(identities ...string) identity.Identity { return identity.Identity{Names: identities} }

// clientOf returns the client of a node with this id and metadata.
func clientOf(id string, metadata map[string]string) Client {
	md := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for k, v := range metadata {
		md.Fields[k] = structpb.NewStringValue(v)
	}
	return must(ParseNode(&corev3.Node{Id: id, Metadata: md}))
}

func TestFirstMatchingViewWins(t *testing.T) {
	views := []View{
		{Name: "listener"},
		{Name: "id", Match: Match{NodeIDs: []string{"sidecar~*~edge-?.*", "gateway"}}},
		{Name: "cluster", Match: Match{ClusterIDs: []string{"east", "west-*"}}},
		{Name: "namespace", Match: Match{Namespaces: []string{"team-*"}}},
		{Name: "identity", Match: Match{Identities: []string{"spiffe://*/ns/istio-system/sa/*", "dns:*.example"}}},
		{Name: "cluster and identity", Match: Match{ClusterIDs: []string{"far"}, Identities: []string{"spiffe://*/**"}}},
		{Name: "late cluster", Match: Match{ClusterIDs: []string{"east"}}},
	}
	type m = map[string]string
	for _, tc := range []struct {
		name       string
		listener   string
		client     Client
		identities []string
		want       string // empty: none
	}{
		{"listener", "listener", clientOf("gateway", m{"CLUSTER_ID": "east"}), nil, "listener"},
		{"listener, identity", "cluster and identity", clientOf("x", nil), []string{"spiffe://mesh/other"}, "cluster and identity"},
		{"id, literally", "", clientOf("gateway", nil), nil, "id"},
		{"id, by pattern", "", clientOf("sidecar~10.0.0.1~edge-1.prod~prod.svc", nil), nil, "id"},
		{"a pattern is for all of an id", "", clientOf("gateway-2", nil), nil, ""},
		{"cluster", "", clientOf("x", m{"CLUSTER_ID": "west-2"}), nil, "cluster"},
		{"the first of two", "", clientOf("x", m{"CLUSTER_ID": "east"}), []string{"dns:a.example"}, "cluster"},
		{"namespace", "", clientOf("x", m{"NAMESPACE": "team-a"}), nil, "namespace"},
		{"namespace of the id", "", clientOf("sidecar~10.0.0.1~p.team-b~d", nil), nil, "namespace"},
		{"another namespace", "", clientOf("x", m{"NAMESPACE": "other"}), nil, ""},
		{"SPIFFE id", "", clientOf("x", nil), []string{"spiffe://mesh/ns/istio-system/sa/istiod"}, "identity"},
		{"a * is one segment", "", clientOf("x", nil), []string{"spiffe://mesh/ns/istio-system/sa/x/istiod"}, ""},
		{"second identity", "", clientOf("x", nil), []string{"spiffe://mesh/other", "dns:relay.example"}, "identity"},
		{"any identity", "", clientOf("x", m{"CLUSTER_ID": "far"}), []string{"spiffe://mesh/other"}, "cluster and identity"},
		{"no identity is not any", "", clientOf("x", m{"CLUSTER_ID": "far"}), nil, ""},
		{"nothing", "", clientOf("x", nil), nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := Listener{Address: "127.0.0.1:15010", View: tc.listener, Verifies: true}
			for _, other := range []string{"", "default"} {
				all := views
				if other != "" {
					all = append([]View{{Name: other, Default: true}}, views...)
				}
				want := tc.want
				if want == "" {
					want = other
				}
				r, err := must(New(all, []Listener{l})).Of(l, tc.client, named(tc.identities...))
				switch {
				case want == "" && status.Code(err) != codes.PermissionDenied:
					t.Errorf("got %v, %v, want a refusal", r, err)
				case want != "" && (err != nil || r.Name != want):
					t.Errorf("got %v, %v, want %s", r, err, want)
				}
			}
		})
	}
}

// TestIdentitiesOfAViewHoldOnEveryListener: on a listener that names the view, and for the default.
func TestIdentitiesOfAViewHoldOnEveryListener(t *testing.T) {
	match := Match{NodeIDs: []string{"other"}, Identities: []string{"spiffe://mesh/ns/a/sa/b"}}
	for name, tc := range map[string]struct {
		view     View
		listener Listener
	}{
		"a listener names the view": {View{Name: "a", Match: match}, Listener{View: "a", Verifies: true}},
		"the view is the default":   {View{Name: "a", Match: match, Default: true}, Listener{Verifies: true}},
	} {
		rs := must(New([]View{tc.view}, []Listener{tc.listener}))
		if r, err := rs.Of(tc.listener, clientOf("x", nil), named("spiffe://mesh/ns/a/sa/b")); err != nil || r.Name != "a" {
			t.Errorf("%s: its identity gets %v, %v", name, r, err)
		}
		for _, other := range [][]string{nil, {"spiffe://mesh/ns/a/sa/c"}} {
			if r, err := rs.Of(tc.listener, clientOf("x", nil), named(other...)); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s: identities %v get %v, %v", name, other, r, err)
			}
		}
	}
	if _, err := New([]View{{Name: "a", Match: match}}, []Listener{{Address: ":1", View: "a"}}); err == nil {
		t.Error("a listener that verifies nobody names a view of identities")
	}
}

func TestRefusalSaysByWhatTheClientWasJudged(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, tc := range []struct {
		client     Client
		identities []string
		want       string
	}{
		{clientOf("n-1", map[string]string{"CLUSTER_ID": "east", "NAMESPACE": "shop"}), nil,
			`no view matches this client: listener 0.0.0.0:15010, node id "n-1", cluster "east", namespace "shop", identity none verified`},
		{clientOf("n-1", nil), []string{"spiffe://a/b", "c"},
			`no view matches this client: listener 0.0.0.0:15010, node id "n-1", cluster "", namespace "", identity "spiffe://a/b", "c"`},
		{clientOf(long, map[string]string{"CLUSTER_ID": long, "NAMESPACE": long}), []string{long, long, long, long, long}, ""},
	} {
		_, err := must(New([]View{{Name: "v"}}, nil)).Of(Listener{Address: "0.0.0.0:15010"}, tc.client, named(tc.identities...))
		got := status.Convert(err).Message()
		if tc.want != "" && got != tc.want || len(got) > 2000 {
			t.Errorf("%d bytes: %s", len(got), got)
		}
	}
}

// TestClaimsOfANodeMustBeThoseOfItsIdentity, whatever the views.
func TestClaimsOfANodeMustBeThoseOfItsIdentity(t *testing.T) {
	const web = "spiffe://cluster.local/ns/shop/sa/web"
	shop := identity.Identity{Names: []string{web}, Namespace: "shop", ServiceAccount: "web"}
	sets := []*Rules{must(New(nil, nil)), must(New([]View{{Name: "v", Match: Match{Identities: []string{"spiffe://*/**"}}}, {Name: "all", Default: true}}, nil))}
	for name, tc := range map[string]struct {
		who                    identity.Identity
		id, namespace, account string
		want                   string // empty: it is let in
	}{
		"claims nothing":             {shop, "client", "", "", ""},
		"claims what it is":          {shop, "client", "shop", "web", ""},
		"another namespace":          {shop, "client", "bank", "web", `claims the namespace "bank", and its identity "` + web + `" has "shop"`},
		"another account":            {shop, "client", "shop", "api", `claims the service account "api", and its identity "` + web + `" has "web"`},
		"a namespace in the node ID": {shop, "sidecar~10.0.0.1~istiod.bank~bank.svc", "", "", `claims the namespace "bank"`},
		"NAMESPACE goes before that": {shop, "sidecar~10.0.0.1~istiod.bank~bank.svc", "shop", "", ""},
		"no identity":                {named(), "client", "bank", "api", ""},
		"an identity of no workload": {named("spiffe://cluster.local/relay"), "client", "bank", "api", ""},
		"a DNS name":                 {named("dns:relay.example"), "client", "bank", "api", ""},
	} {
		c := clientOf(tc.id, map[string]string{"NAMESPACE": tc.namespace, "SERVICE_ACCOUNT": tc.account})
		for _, rs := range sets {
			_, err := rs.Of(Listener{Address: "a"}, c, tc.who)
			if tc.want == "" && err != nil || tc.want != "" && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s: %v, want %q", name, err, tc.want)
			}
		}
	}
}
