package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"meshrelay/downstream"
	"meshrelay/internal/kube"
	"meshrelay/state"
	"meshrelay/upstreams"
)

const (
	// maxAnswerBytes bounds what a Client reads, and maxRefusalBytes what of a refusal.
	maxAnswerBytes  = 256 << 20
	maxRefusalBytes = 8 << 10
)

// Client asks the Server of another process.
type Client struct {
	// Address is host:port.
	Address string
	// Socket is the path of the Unix socket. When set it is asked instead of Address: what
	// changes something needs it.
	Socket string
	// Named tells that the relay at Address has named the Socket: whoever has that port might
	// name one of its own. The Socket must then belong to the user of this process or to root.
	Named bool
	// HTTP is http.DefaultClient when nil. It is not for Socket.
	HTTP *http.Client
}

// StatusError is an answer that is a refusal.
type StatusError struct {
	// Code is the HTTP status, Text what the relay says.
	Code int
	Text string
	// where is what was asked.
	where string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s: %d %s: %s", e.where, e.Code, http.StatusText(e.Code), e.Text)
}

// UnreachableError is of a relay that does not answer at its admin address.
type UnreachableError struct {
	Address string
	Err     error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("ask the relay at admin address %s: %v", e.Address, e.Err)
}

// Unwrap returns what is wrong.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Ready returns the readiness.
func (c Client) Ready(ctx context.Context) (r Readiness, err error) {
	err = c.getJSON(ctx, "/ready", &r)
	return r, err
}

// Upstreams returns the state of every upstream.
func (c Client) Upstreams(ctx context.Context) (s []upstreams.Status, err error) {
	err = c.getJSON(ctx, "/debug/upstreams", &s)
	return s, err
}

// Clients returns the connected clients.
func (c Client) Clients(ctx context.Context) (s []downstream.ClientStatus, err error) {
	err = c.getJSON(ctx, "/debug/connections", &s)
	return s, err
}

// Explain returns how what is served of a config came about. kind is a word as kubectl
// takes it, or group/Kind.
func (c Client) Explain(ctx context.Context, kind, namespace, name string) (e Explanation, err error) {
	q := url.Values{"kind": {kind}, "namespace": {namespace}, "name": {name}}
	err = c.getJSON(ctx, "/debug/explain?"+q.Encode(), &e)
	return e, err
}

// LeftOut returns what the sources have and is not imported; of one upstream and of one kind,
// or of all where those are empty.
func (c Client) LeftOut(ctx context.Context, upstream, kind string) (l []upstreams.LeftOut, err error) {
	q := url.Values{"upstream": {upstream}, "kind": {kind}}
	err = c.getJSON(ctx, "/debug/leftout?"+q.Encode(), &l)
	return l, err
}

// Conflicts returns what sources do not agree on, of a kind or, when it is empty, of all.
func (c Client) Conflicts(ctx context.Context, kind string) (a Conflicts, err error) {
	path := "/debug/conflicts"
	if kind != "" {
		path += "?" + url.Values{"kind": {kind}}.Encode()
	}
	err = c.getJSON(ctx, path, &a)
	return a, err
}

// Configs returns the merged configs.
func (c Client) Configs(ctx context.Context) (objects []kube.Object, err error) {
	err = c.getJSON(ctx, "/debug/configz", &objects)
	return objects, err
}

// LogLevel returns the log level.
func (c Client) LogLevel(ctx context.Context) (string, error) {
	return c.text(ctx, http.MethodGet, "/debug/loglevel")
}

// SetLogLevel sets the log level (debug, info, warn or error) until the process ends. It
// needs the socket.
func (c Client) SetLogLevel(ctx context.Context, level string) error {
	_, err := c.text(ctx, http.MethodPut, "/debug/loglevel?level="+url.QueryEscape(level))
	return err
}

// Version returns which build the relay is, and its socket.
func (c Client) Version(ctx context.Context) (v Version, err error) {
	err = c.getJSON(ctx, "/version", &v)
	return v, err
}

// Freeze has an upstream held as it is, for a time or until it is unfrozen (zero), and
// returns how it is then. This and what follows needs the socket.
func (c Client) Freeze(ctx context.Context, upstream string, lasts time.Duration, o Given) (Controlled, error) {
	query := o.query()
	if lasts != 0 {
		query.Set("for", lasts.String())
	}
	return c.control(ctx, upstream, "freeze", query)
}

// Unfreeze has a frozen upstream followed again, with force also one that is out of contact,
// and returns how it is then.
func (c Client) Unfreeze(ctx context.Context, upstream string, force bool, o Given) (Controlled, error) {
	query := o.query()
	if force {
		query.Set("force", "true")
	}
	return c.control(ctx, upstream, "unfreeze", query)
}

// What is what a release is to carry out: what is held as long as it is Hold, the parts of it
// that Only names (KIND/NAMESPACE), or All.
type What struct {
	Hold string
	Only []string
	All  bool
}

// Release has deletions of an upstream carried out that the guard holds back, and returns how
// it is then.
func (c Client) Release(ctx context.Context, upstream string, what What, o Given) (Controlled, error) {
	query := o.query()
	if what.Hold != "" {
		query.Set("hold", what.Hold)
	}
	for _, text := range what.Only {
		query.Add("only", text)
	}
	if what.All {
		query.Set("all", "true")
	}
	return c.control(ctx, upstream, "release", query)
}

// Rollback has an upstream frozen in the state of a revision, and returns how it is then.
func (c Client) Rollback(ctx context.Context, upstream string, to uint64, o Given) (Controlled, error) {
	query := o.query()
	query.Set("to", strconv.FormatUint(to, 10))
	return c.control(ctx, upstream, "rollback", query)
}

// Given is what every order can be given.
type Given struct {
	// Reason is kept with what comes of it.
	Reason string
	// DryRun asks what would change.
	DryRun bool
}

func (o Given) query() url.Values {
	query := url.Values{}
	if o.Reason != "" {
		query.Set("reason", o.Reason)
	}
	if o.DryRun {
		query.Set("dryRun", "true")
	}
	return query
}

func (c Client) control(ctx context.Context, upstream, action string, query url.Values) (s Controlled, err error) {
	path := "/upstreams/" + url.PathEscape(upstream) + "/" + action
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	err = c.json(ctx, http.MethodPost, path, &s)
	return s, err
}

// Held returns what the guards hold back: of one upstream, or of all when its name is empty.
func (c Client) Held(ctx context.Context, upstream string) (h []upstreams.HeldUpstream, err error) {
	path := "/held"
	if upstream != "" {
		path = "/upstreams/" + url.PathEscape(upstream) + "/held"
	}
	err = c.getJSON(ctx, path, &h)
	return h, err
}

// History returns the revisions of an upstream that are kept, newest first.
func (c Client) History(ctx context.Context, upstream string) (h []state.Revision, err error) {
	err = c.getJSON(ctx, "/upstreams/"+url.PathEscape(upstream)+"/history", &h)
	return h, err
}

// Reload has the config file read and taken over, and returns what became of that.
func (c Client) Reload(ctx context.Context) (s ReloadStatus, err error) {
	err = c.json(ctx, http.MethodPost, "/reload", &s)
	return s, err
}

// Backup writes a copy of the state to w.
func (c Client) Backup(ctx context.Context, w io.Writer) error {
	const path = "/state/backup"
	resp, err := c.ask(ctx, http.MethodGet, path, "application/octet-stream")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c.refusal(path, resp)
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("%s%s: %w", c.where(), path, err)
	}
	return nil
}

func (c Client) getJSON(ctx context.Context, path string, v any) error {
	return c.json(ctx, http.MethodGet, path, v)
}

func (c Client) json(ctx context.Context, method, path string, v any) error {
	// An unready relay says so with 503, and with a body like any other.
	body, err := c.do(ctx, method, path, jsonType, func(code int) bool {
		return code == http.StatusOK || path == "/ready" && code == http.StatusServiceUnavailable
	})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s%s: is this a relay's admin address? %w", c.where(), path, err)
	}
	return nil
}

func (c Client) text(ctx context.Context, method, path string) (string, error) {
	body, err := c.do(ctx, method, path, textType, func(code int) bool { return code == http.StatusOK })
	return strings.TrimSpace(string(body)), err
}

func (c Client) do(ctx context.Context, method, path, accept string, good func(code int) bool) ([]byte, error) {
	resp, err := c.ask(ctx, method, path, accept)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if !good(resp.StatusCode) {
		return nil, c.refusal(path, resp)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s%s: %w", c.where(), path, err)
	case len(body) > maxAnswerBytes:
		return nil, fmt.Errorf("%s%s: the answer is larger than %d MiB", c.where(), path, maxAnswerBytes>>20)
	}
	return body, nil
}

// ask sends a request. The caller closes the body of the answer.
func (c Client) ask(ctx context.Context, method, path, accept string) (*http.Response, error) {
	host, client := c.Address, c.HTTP
	switch {
	case c.Socket != "":
		host = "localhost"
		client = &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, "unix", c.Socket)
				if err != nil || !c.Named {
					return conn, err
				}
				if err := checkServer(c.Socket, conn); err != nil {
					conn.Close()
					return nil, err
				}
				return conn, nil
			},
		}}
	case client == nil:
		client = http.DefaultClient
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+host+path, nil)
	if err != nil {
		return nil, fmt.Errorf("admin address %q: %w", c.Address, err)
	}
	req.Header.Set("Accept", accept)
	resp, err := client.Do(req)
	var asked *url.Error
	if errors.As(err, &asked) {
		err = asked.Err // the URL says nothing that is not said here
	}
	switch {
	case err == nil:
		return resp, nil
	case c.Socket == "":
		return nil, &UnreachableError{c.Address, err}
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("ask the relay at its admin socket: %w: it is for the user that the relay runs as", err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("ask the relay at its admin socket: %w: the command must run on the relay's own host, in a container within that", err)
	}
	return nil, fmt.Errorf("ask the relay at its admin socket: %w", err)
}

func (c Client) refusal(path string, resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusalBytes))
	if err != nil {
		return fmt.Errorf("%s%s: %w", c.where(), path, err)
	}
	return &StatusError{Code: resp.StatusCode, Text: strings.TrimSpace(string(text)), where: c.where() + path}
}

func (c Client) where() string {
	if c.Socket != "" {
		return c.Socket
	}
	return c.Address
}
