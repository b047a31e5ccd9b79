// Package apiserver has the connection to the API server of a cluster: credentials, requests, and the
// identity of the cluster.
//
// The package must not know which objects are read.
package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"meshrelay/internal/certfile"
	"meshrelay/internal/text"
)

const (
	maxFailure = 64 << 10 // bytes of an answer with an error
	maxAnswer  = 4 << 20  // bytes of an answer that Read reads. An object in etcd has 1.5 MiB.
	// ReadTimeout bounds the time of Conn.Read and Conn.Stream.
	ReadTimeout = 15 * time.Second
	dialTimeout = 30 * time.Second
	retryMost   = 10 * time.Second // longest wait for Retry-After
	// maxRetired bounds the former transports that are kept because their streams may still be open. A stream
	// lasts ten minutes at most.
	maxRetired = 16
)

// NewClient returns a client that has read no credentials yet. agent is its User-Agent.
func NewClient(c *Credentials, agent string) *Client { return &Client{creds: c, agent: agent} }

// Client sends requests to one API server with the newest credentials. Any goroutine may call its methods.
type Client struct {
	// Dial connects to the server instead of TCP, unless it is nil.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	creds *Credentials
	agent string

	mu        sync.Mutex // guards all below
	now       *Conn
	retired   []*Conn
	rotations uint64

	issued *issued // by the program of the kubeconfig; only Refresh uses it
}

// Conn sends requests with one set of credentials. A nil Conn has none.
type Conn struct {
	access
	transport *http.Transport
	http      *http.Client
	refused   atomic.Bool // the server has answered 401
	// before has the credentials of before for the same server, which are used for what is refused to these. less is
	// the path of such a request.
	before atomic.Pointer[Conn]
	less   atomic.Pointer[string]
}

// NewConn returns a connection without credentials that sends its requests with t. server is a URL.
func NewConn(server string, t http.RoundTripper) *Conn {
	return &Conn{access: access{config: &rest.Config{Host: server}}, http: &http.Client{Transport: t}}
}

// Refresh reads the credentials again. New requests use them. While they can do less than those of before, which stay
// in use for that, it returns a Kept. Open streams go on, because a server checks credentials only when a stream
// begins. Refresh may run a program. One goroutine at a time may call it.
func (c *Client) Refresh(ctx context.Context) error {
	next, err := accessOf(c.creds)
	if err != nil {
		c.revoke()
		return err // the former credentials stay in use
	}
	if next.program != nil {
		if now := c.Current(); !c.issued.valid(next.digest, time.Now()) || now != nil && now.refused.Load() {
			i, err := issue(ctx, next)
			if err != nil {
				return err
			}
			c.issued = i
		}
		next = next.with(c.issued)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil && c.now.digest == next.digest {
		if path := c.now.less.Load(); path != nil {
			return Kept(*path + " is refused to them")
		}
		return nil
	}
	next.config.UserAgent = c.agent
	transport, client, err := next.transport()
	if err != nil {
		return err
	}
	if c.Dial != nil {
		transport.DialContext = c.Dial
	}
	conn := &Conn{access: next, transport: transport, http: client}
	if c.now != nil {
		if err := certfile.Waits(c.now.leaf(), conn.leaf(), time.Now()); err != nil {
			return Kept(err.Error())
		}
		before := c.now.before.Swap(nil)
		if c.now.less.Load() == nil {
			before = c.now
		}
		if before != nil && before.Server() == conn.Server() && reflect.DeepEqual(before.trust, next.trust) {
			conn.before.Store(before)
		}
		c.rotations++
		c.retired = append(c.retired, c.now)
	}
	c.retired = c.retired[max(0, len(c.retired)-maxRetired):]
	for _, r := range c.retired {
		r.transport.CloseIdleConnections()
	}
	c.now = conn
	return nil
}

// Kept is the error of new credentials that can do less than those of before, which stay in use.
type Kept string

// Error implements error.
func (k Kept) Error() string {
	return "the credentials of before stay in use, the new ones can do less: " + string(k)
}

// revoke ends the use of the connection to a found cluster if the config has changed the trust in its kubeconfig.
func (c *Client) revoke() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil && !reflect.DeepEqual(c.now.trust, c.creds.Found.trust()) {
		c.now.transport.CloseIdleConnections()
		c.retired, c.now = append(c.retired, c.now), nil
	}
}

// Close closes the connections. Their streams must have ended.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.retired {
		r.transport.CloseIdleConnections()
	}
	if c.now != nil {
		c.now.transport.CloseIdleConnections()
	}
}

// Current returns the newest connection, nil while there are no credentials.
func (c *Client) Current() *Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Server returns the URL of the server, empty while there are no credentials.
func (c *Conn) Server() string {
	if c == nil {
		return ""
	}
	return c.config.Host
}

// Rotations returns how often the credentials have changed.
func (c *Client) Rotations() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rotations
}

// ErrNoCredentials is the error of a request while there are no credentials.
var ErrNoCredentials = errors.New("there are no credentials yet")

// Get sends a request, and returns an answer 200. The caller closes the body. For any other answer it returns
// an error of package apierrors. A compressed answer is an error: a few KiB of it may be many MiB.
func (c *Conn) Get(ctx context.Context, path string, query url.Values, accept string) (*http.Response, error) {
	resp, err := c.do(ctx, Write{Method: http.MethodGet, Path: path, Query: query, Accept: accept})
	if err != nil || resp.StatusCode == http.StatusOK {
		return resp, err
	}
	defer resp.Body.Close()
	if n := retryAfter(resp); n > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(min(time.Duration(n)*time.Second, retryMost)):
		}
	}
	return nil, failureOf(resp)
}

// do sends a request, and returns any answer that is not compressed.
func (c *Conn) do(ctx context.Context, w Write) (*http.Response, error) {
	if c == nil {
		return nil, ErrNoCredentials
	}
	resp, err := c.ask(ctx, w)
	if err != nil || resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
		if less := c.less.Load(); err == nil && less != nil && *less == w.Path {
			c.less.Store(nil)
		}
		return resp, err
	}
	if before := c.before.Load(); before != nil {
		if other, err := before.ask(ctx, w); err == nil && other.StatusCode/100 == 2 {
			resp.Body.Close()
			path := w.Path // alone: the body of a write is large
			c.less.Store(&path)
			return other, nil
		} else if err == nil {
			other.Body.Close()
		}
	}
	return resp, nil
}

// ask is do with these credentials alone.
func (c *Conn) ask(ctx context.Context, w Write) (*http.Response, error) {
	u := strings.TrimSuffix(c.Server(), "/") + w.Path
	if len(w.Query) > 0 {
		u += "?" + w.Query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, w.Method, u, bytes.NewReader(w.Body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", w.Accept)
	if w.Body != nil {
		req.Header.Set("Content-Type", w.Type)
	}
	req.Header.Set("Accept-Encoding", "identity") // else net/http asks for gzip and inflates it
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if e := resp.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		resp.Body.Close()
		return nil, fmt.Errorf("%s: the server has compressed its answer, and the relay asks for none that is: look for a proxy between them", w.Path)
	}
	if resp.StatusCode == http.StatusUnauthorized {
		c.refused.Store(true)
	}
	return resp, nil
}

// failureOf returns the error of an answer that is not 200.
func failureOf(resp *http.Response) *apierrors.StatusError {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxFailure)) // a part of the text is enough
	status := &metav1.Status{}
	if json.Unmarshal(body, status) == nil && status.Status == metav1.StatusFailure && status.Code == int32(resp.StatusCode) {
		status.Message = text.Abbreviate(status.Message)
		return &apierrors.StatusError{ErrStatus: *status}
	}
	// The answer may be a proxy's.
	return apierrors.NewGenericServerResponse(resp.StatusCode, "get", schema.GroupResource{}, "", text.Abbreviate(strings.TrimSpace(string(body))), 0, true)
}

// retryAfter returns the seconds of Retry-After, and 0 if there are none.
func retryAfter(resp *http.Response) int32 {
	n, err := strconv.ParseInt(resp.Header.Get("Retry-After"), 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

// Read decodes a small JSON answer.
func (c *Conn) Read(ctx context.Context, path, accept string, to any) error {
	return c.Stream(ctx, path, accept, maxAnswer, func(body io.Reader) error {
		text, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		return json.Unmarshal(text, to)
	})
}

// Stream calls f with the body of an answer, which has most bytes and takes ReadTimeout at most.
func (c *Conn) Stream(ctx context.Context, path, accept string, most int64, f func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	resp, err := c.Get(ctx, path, nil, accept)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	err = f(http.MaxBytesReader(nil, body{resp.Body, path}, most))
	if errors.As(err, new(*http.MaxBytesError)) {
		return fmt.Errorf("%s: the answer is larger than %d MiB: look whether the address is that of an API server", path, most>>20)
	}
	return err
}

// body is the body of an answer. That it breaks off is an error of the request, as if there were no answer.
type body struct {
	io.ReadCloser
	path string
}

// Read implements io.Reader.
func (b body) Read(p []byte) (n int, err error) {
	if n, err = b.ReadCloser.Read(p); err != nil && err != io.EOF { // a body ends with io.EOF itself
		err = &url.Error{Op: "read", URL: b.path, Err: err}
	}
	return n, err
}

// These are media types for Conn.Get.
const (
	AcceptJSON = "application/json"
	// AcceptMetadata requests only the metadata of an object or of watched objects.
	AcceptMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	// AcceptMetadataList requests only the metadata of listed objects.
	AcceptMetadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," + AcceptJSON
)
