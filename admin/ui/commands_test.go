package ui

import (
	"net/url"
	"strings"
	"testing"
)

func TestCommandsNameTheAddressThatIsNotTheUsualOne(t *testing.T) {
	f := newFixture(t, 1)
	for _, tc := range []struct{ admin, xds, command, want string }{
		{"127.0.0.1:15014", "127.0.0.1:15010", "relay status", "relay status"},
		{"0.0.0.0:15014", ":15010", "relay get all -A", "relay get all -A"},
		{"[::]:15014", "[::]:15010", "relay status", "relay status"},
		{"localhost:15014", "localhost:15010", "relay status", "relay status"},
		{"127.0.0.1:15114", "", "relay status", "relay status --admin 127.0.0.1:15114"},
		{"0.0.0.0:15114", "", "relay upstreams --held east", "relay upstreams --held east --admin 127.0.0.1:15114"},
		{"10.0.0.7:15014", "", "relay status", "relay status --admin 10.0.0.7:15014"},
		{"[fd00::1]:15014", "", "relay status", "relay status --admin '[fd00::1]:15014'"},
		{"127.0.0.1:15114", "0.0.0.0:15110", "relay get all -A", "relay get all -A --server 127.0.0.1:15110"},
		{"127.0.0.1:15114", "", "relay get all -A", "relay get all -A"},
		{"127.0.0.1:15114", "", "kubectl get pods", "kubectl get pods"},
		{"", "", "relay status", "relay status"},
	} {
		f.data.Admin, f.data.XDS = tc.admin, tc.xds
		got := f.here(tc.command)
		if got != tc.want || f.here(got) != got {
			t.Errorf("%s, %s: %q became %q, and then %q", tc.admin, tc.xds, tc.command, got, f.here(got))
		}
	}
	f.data.Admin = "127.0.0.1:15114"
	for _, path := range paths() {
		_, body, _ := f.get(t, path)
		for _, part := range strings.Split(body, "<code>relay ")[1:] {
			command, _, _ := strings.Cut(part, "</code>")
			if !strings.Contains(command, " --admin 127.0.0.1:15114") && !strings.HasPrefix(command, "get ") {
				t.Errorf("%s shows relay %s", path, command)
			}
		}
	}
}

func TestCommandsOfListsHaveTheirFilters(t *testing.T) {
	f := newFixture(t, 10)
	for query, want := range map[string]string{
		"/events?type=changed,held&upstream=east&q=a+b": "relay events --type changed,held --upstream east --search &#39;a b&#39;",
		"/events?at=03:12&window=10m":                   "relay events --since 2026-11-21T03:07:00Z --until 2026-11-21T03:17:00Z",
		"/events?upstream=east&tools=true":              "relay events --upstream east --tools<",
		"/events?window=1h":                             "relay events --since 2026-11-21T02:14:07Z",
		"/resources?kind=" + url.QueryEscape(serviceEntry.String()) + "&namespace=team-1&q=service": "relay get networking.istio.io/v1/ServiceEntry -n team-1 --search service",
		"/resources?q=service":                             "relay get all -A --search service",
		"/resources?q=x&in=names+and+content":              "relay get all -A<",
		"/resources?upstream=west&kind=example.com/Widget": "relay get example.com/v1/Widget -A<",
	} {
		_, body, _ := f.get(t, query)
		if !strings.Contains(body, want) {
			_, command, _ := strings.Cut(body, `class="same"`)
			t.Errorf("%s: no %q in %.400s", query, want, command)
		}
	}
	for query, want := range map[string]string{
		"/resources?upstream=west":                          "; the command lists them of all upstreams",
		"/resources?q=x&in=names+and+content&upstream=west": "; the command lists them with any content and of all upstreams",
	} {
		if _, body, _ := f.get(t, query); !strings.Contains(body, want) {
			t.Errorf("%s: it does not tell what the command lists", query)
		}
	}
}
