package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"meshrelay/downstream"
	"meshrelay/events"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/orders"
	"meshrelay/services"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/clusters"
)

const (
	// maxAnswerBytes bounds an answer that a Client reads, and maxRefusalBytes the text of a refusal.
	maxAnswerBytes  = 256 << 20
	maxRefusalBytes = 8 << 10
)

// Client sends requests to the Server of another process.
type Client struct {
	// Address is host:port.
	Address string
	// Socket is the path of the Unix socket. If set, it is used instead of Address. Requests that change
	// something need it.
	Socket string
	// Named is set when the relay at Address has given the Socket. Another process may have taken that
	// port: the Socket must belong to the user of this process or to root.
	Named bool

	body []byte // of the request, nil for none
}

// StatusError is the error when a relay refuses a request.
type StatusError struct {
	// Code is the HTTP status, Text the answer of the relay.
	Code int
	Text string
	// where is the server and the path of the request.
	where string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s: %d %s: %s", e.where, e.Code, http.StatusText(e.Code), e.Text)
}

// UnreachableError is the error when no relay answers at an admin address.
type UnreachableError struct {
	Address string
	Err     error
}

func (e *UnreachableError) Error() string {
	if errors.Is(e.Err, context.DeadlineExceeded) {
		return fmt.Sprintf("no relay answers at %s in time", e.Address)
	}
	return fmt.Sprintf("no relay answers at %s: %v", e.Address, causeOf(e.Err))
}

// causeOf returns the cause in an error of a connection, without "dial tcp ADDRESS: connect: " before it.
func causeOf(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	if call, ok := errors.AsType[*os.SyscallError](err); ok {
		err = call.Err
	}
	return err
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Ready returns the readiness.
func (c Client) Ready(ctx context.Context) (Readiness, error) {
	return ask[Readiness](ctx, c, http.MethodGet, "/ready", nil)
}

// Upstreams returns the state of every upstream.
func (c Client) Upstreams(ctx context.Context) ([]upstreams.Status, error) {
	return ask[[]upstreams.Status](ctx, c, http.MethodGet, "/debug/upstreams", nil)
}

// Clusters returns the clusters that were found.
func (c Client) Clusters(ctx context.Context) ([]clusters.Status, error) {
	return ask[[]clusters.Status](ctx, c, http.MethodGet, "/debug/clusters", nil)
}

// Replicas returns the asked replica and the others, or none if it knows no others.
func (c Client) Replicas(ctx context.Context) ([]orders.Replica, error) {
	return ask[[]orders.Replica](ctx, c, http.MethodGet, "/debug/replicas", nil)
}

// ReleaseClusters makes the held clusters of a part of the config orphaned. Like RemoveCluster, it needs the
// socket.
func (c Client) ReleaseClusters(ctx context.Context, name string) (Released, error) {
	return ask[Released](ctx, c, http.MethodPost, "/clusters/"+url.PathEscape(name)+"/release", nil)
}

// RemoveCluster removes an orphaned or held cluster.
func (c Client) RemoveCluster(ctx context.Context, name, cluster string) error {
	_, err := ask[struct{}](ctx, c, http.MethodPost, "/clusters/"+url.PathEscape(name)+"/remove", url.Values{"cluster": {cluster}})
	return err
}

// Clients returns the connected clients.
func (c Client) Clients(ctx context.Context) ([]downstream.ClientStatus, error) {
	return ask[[]downstream.ClientStatus](ctx, c, http.MethodGet, "/debug/connections", nil)
}

// Explain explains a resource. kind is a name of a kind as for kubectl, or group/Kind.
func (c Client) Explain(ctx context.Context, kind, namespace, name string) (Explanation, error) {
	return ask[Explanation](ctx, c, http.MethodGet, "/debug/explain", url.Values{"kind": {kind}, "namespace": {namespace}, "name": {name}})
}

// LeftOut returns the resources that import rules leave out, of one upstream and one kind. An empty upstream or
// kind means all.
func (c Client) LeftOut(ctx context.Context, upstream, kind string) ([]records.LeftOut, error) {
	return ask[[]records.LeftOut](ctx, c, http.MethodGet, "/debug/leftout", url.Values{"upstream": {upstream}, "kind": {kind}})
}

// Conflicts returns the conflicts between upstreams, of one kind. An empty kind means all.
func (c Client) Conflicts(ctx context.Context, kind string) (Conflicts, error) {
	return ask[Conflicts](ctx, c, http.MethodGet, "/debug/conflicts", url.Values{"kind": {kind}})
}

// Services returns services. The parameters are those of /debug/services.
func (c Client) Services(ctx context.Context, query url.Values) (services.Answer, error) {
	return ask[services.Answer](ctx, c, http.MethodGet, "/debug/services", query)
}

// Resources returns the merged resources.
func (c Client) Resources(ctx context.Context) ([]kube.Object, error) {
	return ask[[]kube.Object](ctx, c, http.MethodGet, "/debug/configz", nil)
}

// Config returns the merged resource of a key, or an empty list.
func (c Client) Config(ctx context.Context, key mirror.Key) ([]kube.Object, error) {
	return ask[[]kube.Object](ctx, c, http.MethodGet, "/debug/configz",
		url.Values{"kind": {key.Kind.String()}, "namespace": {key.Namespace}, "name": {key.Name}})
}

// ConfigVersions returns the versions of the merged resources.
func (c Client) ConfigVersions(ctx context.Context) ([]ConfigVersion, error) {
	return ask[[]ConfigVersion](ctx, c, http.MethodGet, "/debug/versions", nil)
}

// Version returns the build of the relay, its socket and its memory.
func (c Client) Version(ctx context.Context) (Version, error) {
	return ask[Version](ctx, c, http.MethodGet, "/version", nil)
}

// LogLevel returns the log level, with its end and the next level if it was set for a time.
func (c Client) LogLevel(ctx context.Context) (string, error) {
	return c.text(ctx, http.MethodGet, "/debug/loglevel")
}

// SetLogLevel sets the log level (debug, info, warn or error), for the duration lasts or, if it is 0, until the
// process ends. It returns the level as LogLevel does. SetLogLevel needs the socket.
func (c Client) SetLogLevel(ctx context.Context, level string, lasts time.Duration) (string, error) {
	query := url.Values{"level": {level}}
	if lasts != 0 {
		query.Set("for", lasts.String())
	}
	return c.text(ctx, http.MethodPut, "/debug/loglevel?"+query.Encode())
}

// Order gives an order about an upstream: freeze, unfreeze, release, rollback or resync. It returns the state of the
// upstream after the order, and needs the socket.
func (c Client) Order(ctx context.Context, upstream, verb string, o intake.Order) (Controlled, error) {
	query := url.Values{
		"reason": {o.Reason}, "dryRun": set(o.DryRun), "force": set(o.Force),
		"hold": {o.Hold}, "all": set(o.All),
	}
	for _, part := range o.Only {
		query.Add("only", part.String())
	}
	if o.To != 0 {
		query.Set("to", strconv.FormatUint(o.To, 10))
	}
	return ask[Controlled](ctx, c, http.MethodPost, ofUpstream(upstream, verb), query)
}

// set returns the values of a bool parameter: "true", or none.
func set(on bool) []string {
	if on {
		return []string{"true"}
	}
	return nil
}

func ofUpstream(upstream, action string) string {
	return "/upstreams/" + url.PathEscape(upstream) + "/" + action
}

// ServeWithout ends the wait of clients for an upstream, and returns the upstreams for which they still wait. It
// needs the socket.
func (c Client) ServeWithout(ctx context.Context, upstream string) (Waiting, error) {
	return ask[Waiting](ctx, c, http.MethodPost, ofUpstream(upstream, "serve-without"), nil)
}

// Events returns a page of the journal. The parameters are those of /debug/events.
func (c Client) Events(ctx context.Context, query url.Values) (events.Page, error) {
	return ask[events.Page](ctx, c, http.MethodGet, "/debug/events", query)
}

// Held returns the deletions that guards hold, of one upstream or, if its name is empty, of all. It needs the
// socket.
func (c Client) Held(ctx context.Context, upstream string) ([]intake.HeldUpstream, error) {
	path := "/held"
	if upstream != "" {
		path = ofUpstream(upstream, "held")
	}
	return ask[[]intake.HeldUpstream](ctx, c, http.MethodGet, path, nil)
}

// History returns the revisions of an upstream, newest first. It needs the socket.
func (c Client) History(ctx context.Context, upstream string) ([]state.Revision, error) {
	return ask[[]state.Revision](ctx, c, http.MethodGet, ofUpstream(upstream, "history"), nil)
}

// Reload makes the relay load its config file again, and returns the result. It needs the socket.
func (c Client) Reload(ctx context.Context) (ReloadStatus, error) {
	return ask[ReloadStatus](ctx, c, http.MethodPost, "/reload", nil)
}

// BundleOptions are the settings of a support bundle.
type BundleOptions struct {
	// Seconds is the length of the CPU profile.
	Seconds int
	// Resources adds the merged resources.
	Resources bool
}

// SupportBundle writes a support bundle (tar.gz) to w. It needs the socket.
func (c Client) SupportBundle(ctx context.Context, w io.Writer, o BundleOptions) error {
	query := url.Values{"seconds": {strconv.Itoa(o.Seconds)}, "resources": set(o.Resources)}
	return c.do(ctx, http.MethodGet, "/support-bundle?"+query.Encode(), "application/gzip", func(body io.Reader) error {
		_, err := io.Copy(w, body)
		return err
	})
}

// ask sends a request and decodes the JSON of the answer. It leaves out empty parameters.
func ask[T any](ctx context.Context, c Client, method, path string, query url.Values) (v T, err error) {
	maps.DeleteFunc(query, func(_ string, values []string) bool { return strings.Join(values, "") == "" })
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	err = c.do(ctx, method, path, jsonType, func(body io.Reader) error {
		text, err := readAll(body)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, &v); err != nil {
			return fmt.Errorf("is this a relay's admin address? %w", err)
		}
		return nil
	})
	return v, err
}

func (c Client) text(ctx context.Context, method, path string) (text string, err error) {
	err = c.do(ctx, method, path, textType, func(body io.Reader) error {
		all, err := readAll(body)
		text = strings.TrimSpace(string(all))
		return err
	})
	return text, err
}

func readAll(body io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(body, maxAnswerBytes+1))
	if len(text) > maxAnswerBytes {
		return nil, fmt.Errorf("the answer is larger than %d MiB", maxAnswerBytes>>20)
	}
	return text, err
}

// do sends a request and calls read with the body of the answer. A refusal becomes a StatusError.
func (c Client) do(ctx context.Context, method, path, accept string, read func(io.Reader) error) error {
	resp, err := c.send(ctx, method, path, accept)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	where := cmp.Or(c.Socket, c.Address) + path
	// An unready relay answers /ready with 503 and the usual body.
	if resp.StatusCode != http.StatusOK && (path != "/ready" || resp.StatusCode != http.StatusServiceUnavailable) {
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusalBytes))
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		return &StatusError{Code: resp.StatusCode, Text: strings.TrimSpace(string(text)), where: where}
	}
	if err := read(resp.Body); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}

// transport sends each request on a new connection. With a Socket, it sends those for any host over it.
func (c Client) transport() *http.Transport {
	if c.Socket == "" {
		return &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}
	}
	return &http.Transport{
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
	}
}

// checkAddress returns an error unless an address is host:port. Without it, a URL would be read as a host called
// "http".
func checkAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("admin address %q: want host:port, such as 127.0.0.1:15014", address)
	}
	return nil
}

// send sends a request. The caller closes the body of the answer.
func (c Client) send(ctx context.Context, method, path, accept string) (*http.Response, error) {
	host := c.Address
	if c.Socket != "" {
		host = "localhost"
	} else if err := checkAddress(c.Address); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+host+path, bytes.NewReader(c.body))
	if err != nil {
		return nil, fmt.Errorf("admin address %q: %w", c.Address, err)
	}
	req.Header.Set("Accept", accept)
	resp, err := (&http.Client{Transport: c.transport()}).Do(req)
	if asked, ok := errors.AsType[*url.Error](err); ok {
		err = asked.Err // without the URL
	}
	switch {
	case err == nil:
		return resp, nil
	case c.Socket == "":
		// An HTTP/2 server sends first. net/http has two errors for this: the data came before or after the request.
		if text := err.Error(); strings.Contains(text, "malformed HTTP response") || strings.Contains(text, "readLoopPeekFailLocked") {
			err = errors.New("no HTTP server listens there: it may be the port for xDS")
		}
		return nil, &UnreachableError{c.Address, err}
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("no relay answers at the socket %s: %w: only the user of the relay and root may open it", c.Socket, causeOf(err))
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("no relay answers at the socket %s: %w: run the command on the relay's own host, or in its container", c.Socket, causeOf(err))
	}
	return nil, fmt.Errorf("no relay answers at the socket %s: %w", c.Socket, causeOf(err))
}
