package console

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"meshrelay/admin"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

const host = "127.0.0.1:8080"

// relay is a Relay that records its calls.
type relay struct {
	orders []string
	last   intake.Order
	err    error
	asked  *http.Request
}

func (r *relay) Order(_ context.Context, upstream, verb string, o intake.Order) (admin.Controlled, error) {
	r.orders, r.last = append(r.orders, verb+" "+upstream), o
	return admin.Controlled{Status: upstreams.Status{Name: upstream}, DryRun: o.DryRun, Effect: intake.Effect{Removed: 3}}, r.err
}

func (r *relay) Version(context.Context) (admin.Version, error) {
	return admin.Version{Name: "hub"}, nil
}

func (r *relay) OverSocket() http.RoundTripper { return r }

func (r *relay) RoundTrip(req *http.Request) (*http.Response, error) {
	r.asked = req
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/html"}}, Body: io.NopCloser(strings.NewReader("page")), Request: req}, nil
}

type fixture struct {
	*Console
	relay  *relay
	cookie *http.Cookie
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{relay: &relay{}}
	var err error
	f.Console, err = New(f.relay, host, "", func(_ context.Context, config []byte) (string, error) {
		if len(config) == 0 {
			return "", errors.New("empty config")
		}
		return "add  a/B c/d\n\n1 to add, 0 to change, 0 to remove\n", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// do sends a request as a browser on the page does.
func (f *fixture) do(method, path string, form url.Values, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://"+host+path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	if f.cookie != nil {
		r.AddCookie(f.cookie)
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w
}

// enter opens the link.
func (f *fixture) enter(t *testing.T) {
	t.Helper()
	link, err := url.Parse(f.Link())
	if err != nil {
		t.Fatal(err)
	}
	w := f.do(http.MethodGet, link.RequestURI(), nil, "Sec-Fetch-Site", "none")
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != f.base()+"/" || len(w.Result().Cookies()) != 1 {
		t.Fatalf("the link: %d %v", w.Code, w.Header())
	}
	f.cookie = w.Result().Cookies()[0]
}

func TestTheLinkOfTheConsoleWorksOnce(t *testing.T) {
	f := newFixture(t)
	link, err := url.Parse(f.Link())
	if err != nil {
		t.Fatal(err)
	}
	if w := f.do(http.MethodGet, link.Path+"?token=wrong", nil); w.Code != http.StatusForbidden {
		t.Errorf("a wrong token: %d", w.Code)
	}
	f.enter(t)
	if !f.cookie.HttpOnly || f.cookie.SameSite != http.SameSiteStrictMode || f.cookie.Path != "/"+f.id+"/" {
		t.Errorf("the cookie is %+v", f.cookie)
	}
	cookie := f.cookie
	f.cookie = nil
	if w := f.do(http.MethodGet, link.RequestURI(), nil); w.Code != http.StatusForbidden || len(w.Result().Cookies()) != 0 {
		t.Errorf("the link again: %d", w.Code)
	}
	if w := f.do(http.MethodGet, f.base()+"/", nil); w.Code != http.StatusForbidden {
		t.Errorf("without the cookie: %d", w.Code)
	}
	f.cookie = cookie
	if w := f.do(http.MethodGet, f.base()+"/upstreams?q=x", nil); w.Code != http.StatusOK || w.Body.String() != "page" {
		t.Errorf("with the cookie: %d: %s", w.Code, w.Body)
	}
	if got := f.relay.asked; got.URL.String() != "http://localhost/ui/upstreams?q=x" || got.Header.Get("Cookie") != "" || got.Header.Get("Sec-Fetch-Site") != "" || got.Header.Get("Relay-Ui-Base") != f.base() {
		t.Errorf("the relay is asked %s %v", got.URL, got.Header)
	}
}

func TestOtherPagesDoNotPressButtons(t *testing.T) {
	f := newFixture(t)
	f.enter(t)
	form := url.Values{"upstream": {"east"}, "confirm": {"east"}, "reason": {"x"}, "hold": {"abc"}}
	for name, headers := range map[string][]string{
		"another site": {"Sec-Fetch-Site", "cross-site"}, "another port": {"Sec-Fetch-Site", "same-site"}, "an old browser": {"Sec-Fetch-Site", "", "Origin", "http://evil.example"},
		"another name": {"Host", "evil.example:8080"}, "another port of ours": {"Host", "127.0.0.1:9"},
	} {
		if w := f.do(http.MethodPost, f.base()+"/act/release", form, headers...); w.Code != http.StatusForbidden {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	cookie := f.cookie
	f.cookie = nil
	if w := f.do(http.MethodPost, f.base()+"/act/release", form); w.Code != http.StatusForbidden {
		t.Errorf("without the cookie: %d", w.Code)
	}
	if f.cookie = cookie; len(f.relay.orders) != 0 {
		t.Errorf("orders %v", f.relay.orders)
	}
	if w := f.do(http.MethodGet, f.base()+"/act/release?"+form.Encode(), nil); len(f.relay.orders) != 0 {
		t.Errorf("an order by GET: %d", w.Code)
	}
}

func TestAButtonNeedsTheNameTheHoldAndAReason(t *testing.T) {
	f := newFixture(t)
	f.enter(t)
	whole := map[string]string{"upstream": "east", "confirm": "east", "reason": "meant", "hold": "abc", "to": "7", "for": "2h"}
	form := func(without, value string) url.Values {
		out := url.Values{}
		for k, v := range whole {
			out.Set(k, v)
		}
		out.Set(without, value)
		return out
	}
	for _, bad := range []struct{ verb, field, value string }{
		{"release", "confirm", "west"}, {"release", "confirm", ""}, {"release", "reason", " "}, {"release", "hold", ""}, {"release", "upstream", ""},
		{"rollback", "to", "last"}, {"freeze", "for", "long"}, {"freeze", "for", "-1h"}, {"unfreeze", "confirm", "EAST"},
	} {
		w := f.do(http.MethodPost, f.base()+"/act/"+bad.verb, form(bad.field, bad.value))
		if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "Nothing was changed") {
			t.Errorf("%+v: %d", bad, w.Code)
		}
	}
	if len(f.relay.orders) != 0 {
		t.Fatalf("orders %v", f.relay.orders)
	}
	for _, verb := range []string{"release", "rollback", "freeze", "unfreeze"} {
		if w := f.do(http.MethodPost, f.base()+"/act/"+verb, form("reason", "meant")); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "Done: "+verb+" east") {
			t.Errorf("%s: %d: %s", verb, w.Code, w.Body)
		}
	}
	if got := strings.Join(f.relay.orders, ", "); got != "release east, rollback east, freeze east, unfreeze east" {
		t.Error(got)
	}
	if w := f.do(http.MethodPost, f.base()+"/act/release", form("dryRun", "true")); !strings.Contains(w.Body.String(), "nothing was changed") || !f.relay.last.DryRun || f.relay.last.Hold != "abc" {
		t.Errorf("a dry run: %s %+v", w.Body, f.relay.last)
	}
	f.relay.err = intake.NotPossible("hold abc has grown by 2 since\n  + a/B c/<script>")
	w := f.do(http.MethodPost, f.base()+"/act/release", form("reason", "meant"))
	if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "has grown by 2") || strings.Contains(w.Body.String(), "<script>") {
		t.Errorf("a refusal: %d: %s", w.Code, w.Body)
	}
}

func TestAConfigFileIsPlannedInTheConsole(t *testing.T) {
	f := newFixture(t)
	f.enter(t)
	if w := f.do(http.MethodPost, f.base()+"/act/plan", url.Values{"config": {"node: {}"}}); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "1 to add, 0 to change") {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	if w := f.do(http.MethodPost, f.base()+"/act/plan", url.Values{}); w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "empty config") {
		t.Errorf("an empty config: %d", w.Code)
	}
	if w := f.do(http.MethodPost, f.base()+"/act/plan", url.Values{"config": {strings.Repeat("x", maxForm)}}); w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "the form is larger than 1") {
		t.Errorf("a config that is too large: %d", w.Code)
	}
}
