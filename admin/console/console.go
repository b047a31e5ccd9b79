// Package console is the web page with buttons, for the user who runs "relay ui". It shows the pages of a relay, read
// over its Unix socket, and carries out the orders of their forms. Who may open the socket may press the buttons:
// there is no other login.
//
// A link with a token opens the page once; after that, a cookie does. The package must not know the command line or
// how orders work.
package console

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base32"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"time"

	"meshrelay/admin"
	"meshrelay/admin/ui"
	"meshrelay/upstreams/intake"
)

const (
	cookieName = "relay-ui"
	// maxForm bounds a form, in bytes. A form may contain a config file.
	maxForm = 1 << 20
	// orderTimeout bounds an order, and planTimeout a plan.
	orderTimeout = 30 * time.Second
	planTimeout  = time.Minute
)

// Relay sends requests to the relay over its socket.
type Relay interface {
	Order(ctx context.Context, upstream, verb string, o intake.Order) (admin.Controlled, error)
	Version(ctx context.Context) (admin.Version, error)
	OverSocket() http.RoundTripper
}

// Console is an http.Handler for one browser. New makes it.
type Console struct {
	relay Relay
	// plan returns what a config file would change.
	plan func(ctx context.Context, config []byte) (string, error)
	host string

	id, token, secret string
	opened            atomic.Bool // the token was used
	pages             *ui.Pages
	proxy             *httputil.ReverseProxy
	handler           http.Handler
}

// New returns a Console for a server at host, which is host:port. It refuses requests for other hosts. adminAddress
// is the admin address of the relay, for the commands that pages show.
func New(relay Relay, host, adminAddress string, plan func(ctx context.Context, config []byte) (string, error)) (*Console, error) {
	pages, err := ui.New(ui.Data{Admin: adminAddress})
	if err != nil {
		return nil, err
	}
	c := &Console{relay: relay, plan: plan, host: host, id: random(), token: random(), secret: random(), pages: pages}
	c.proxy = &httputil.ReverseProxy{
		Transport:     relay.OverSocket(),
		FlushInterval: -1, // send hints at once
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "localhost", "localhost"
			r.Out.URL.Path, r.Out.URL.RawPath = strings.TrimPrefix(r.In.URL.Path, "/"+c.id), strings.TrimPrefix(r.In.URL.RawPath, "/"+c.id)
			r.Out.Header = http.Header{"Accept": r.In.Header["Accept"], admin.BaseHeader: {c.base()}}
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			c.answer(w, r, &ui.Page{Title: "No answer", Lead: ui.State{Level: ui.Bad, Text: "The relay does not answer: " + err.Error()}, Command: "relay status"}, http.StatusBadGateway)
		},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /"+c.id+"/{$}", c.open)
	mux.Handle("GET "+c.base()+"/", c.known(c.show))
	for _, verb := range []string{"freeze", "unfreeze", "release", "rollback"} {
		mux.Handle("POST "+c.base()+"/act/"+verb, c.known(func(w http.ResponseWriter, r *http.Request) { c.order(w, r, verb) }))
	}
	mux.Handle("POST "+c.base()+"/act/plan", c.known(c.what))
	c.handler = http.NewCrossOriginProtection().Handler(mux)
	return c, nil
}

// random returns 128 random bits as a word.
func random() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // Read never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b))
}

// base is the path of the pages, which is secret. A browser sends a cookie to every port of a host; the path in the
// cookie keeps it from the servers of other ports.
func (c *Console) base() string { return "/" + c.id + ui.Path }

// Link returns the address that opens the Console, once.
func (c *Console) Link() string { return "http://" + c.host + "/" + c.id + "/?token=" + c.token }

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ui.SetHeaders(w.Header())
	if r.Host != c.host { // another name that resolves to this host
		http.Error(w, "the host of the request is not "+c.host, http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	c.handler.ServeHTTP(w, r)
}

// open checks the token and sets the cookie.
func (c *Console) open(w http.ResponseWriter, r *http.Request) {
	if !same(r.URL.Query().Get("token"), c.token) || !c.opened.CompareAndSwap(false, true) {
		if c.isKnown(r) {
			http.Redirect(w, r, c.base()+"/", http.StatusSeeOther)
			return
		}
		http.Error(w, "the link works once: run \"relay ui\" again for another one", http.StatusForbidden)
		return
	}
	// It can not be Secure: there is no TLS on 127.0.0.1.
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: c.secret, Path: "/" + c.id + "/", HttpOnly: true, SameSite: http.SameSiteStrictMode}) //nolint:gosec // see above
	http.Redirect(w, r, c.base()+"/", http.StatusSeeOther)
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func (c *Console) isKnown(r *http.Request) bool {
	cookie, err := r.Cookie(cookieName)
	return err == nil && same(cookie.Value, c.secret)
}

// known lets requests with the cookie through.
func (c *Console) known(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !c.isKnown(r) {
			http.Error(w, "this page is for the browser that opened the link of \"relay ui\"", http.StatusForbidden)
			return
		}
		next(w, r)
	})
}

// show shows a page of the relay.
func (c *Console) show(w http.ResponseWriter, r *http.Request) {
	if at := strings.TrimPrefix(r.URL.Path, "/"+c.id); c.pages.HasAsset(strings.TrimPrefix(at, ui.Path)) {
		own := r.Clone(r.Context())
		own.URL.Path, own.URL.RawPath = at, ""
		c.pages.ServeHTTP(w, own)
		return
	}
	for name := range w.Header() { // the relay sets its own
		w.Header().Del(name)
	}
	c.proxy.ServeHTTP(w, r)
}

// answer answers with a page of the Console itself.
func (c *Console) answer(w http.ResponseWriter, r *http.Request, page *ui.Page, code int) {
	ui.SetHeaders(w.Header())
	ctx, cancel := context.WithTimeout(r.Context(), orderTimeout)
	defer cancel()
	version, err := c.relay.Version(ctx)
	ready := ui.State{Level: ui.OK, Text: "connected"}
	if err != nil {
		ready = ui.State{Level: ui.Bad, Text: "no answer"}
	}
	c.pages.Render(w, ui.Frame{Base: c.base(), Act: true, Version: version, Ready: ready, Now: time.Now(), Path: strings.TrimPrefix(r.URL.Path, c.base())}, page, code)
}
