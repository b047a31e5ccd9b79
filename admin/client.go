package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"meshrelay/downstream"
	"meshrelay/internal/object"
	"meshrelay/upstreams"
)

// maxAnswerBytes bounds what a Client reads.
const maxAnswerBytes = 256 << 20

// Client asks the Server of another process.
type Client struct {
	// Address is host:port.
	Address string
	// HTTP is http.DefaultClient when nil.
	HTTP *http.Client
}

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
func (c Client) Configs(ctx context.Context) (objects []object.Object, err error) {
	err = c.getJSON(ctx, "/debug/configz", &objects)
	return objects, err
}

// LogLevel returns the log level.
func (c Client) LogLevel(ctx context.Context) (string, error) {
	return c.text(ctx, http.MethodGet, "/debug/loglevel")
}

// SetLogLevel sets the log level (debug, info, warn or error) until the process ends.
func (c Client) SetLogLevel(ctx context.Context, level string) error {
	_, err := c.text(ctx, http.MethodPut, "/debug/loglevel?level="+url.QueryEscape(level))
	return err
}

func (c Client) getJSON(ctx context.Context, path string, v any) error {
	// An unready relay says so with 503, and with a body like any other.
	body, err := c.do(ctx, http.MethodGet, path, jsonType, func(code int) bool {
		return code == http.StatusOK || path == "/ready" && code == http.StatusServiceUnavailable
	})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s%s: is this a relay's admin address? %w", c.Address, path, err)
	}
	return nil
}

func (c Client) text(ctx context.Context, method, path string) (string, error) {
	body, err := c.do(ctx, method, path, textType, func(code int) bool { return code == http.StatusOK })
	return strings.TrimSpace(string(body)), err
}

func (c Client) do(ctx context.Context, method, path, accept string, good func(code int) bool) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.Address+path, nil)
	if err != nil {
		return nil, fmt.Errorf("admin address %q: %w", c.Address, err)
	}
	req.Header.Set("Accept", accept)
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the relay at admin address %s: %w", c.Address, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s%s: %w", c.Address, path, err)
	case len(body) > maxAnswerBytes:
		return nil, fmt.Errorf("%s%s: the answer is larger than %d MiB", c.Address, path, maxAnswerBytes>>20)
	case !good(resp.StatusCode):
		return nil, fmt.Errorf("%s%s: %s: %s", c.Address, path, resp.Status, strings.TrimSpace(string(body[:min(len(body), 1024)])))
	}
	return body, nil
}
