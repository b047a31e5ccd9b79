package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/certfile"
	"meshrelay/internal/text"
)

const (
	maxSecret = 8 << 10 // bytes of a file with a URL or a token
	maxAnswer = 4 << 10 // bytes that are read of an answer
	maxHeader = 64 << 10
	maxError  = 512
)

// answer is an error with the status that a receiver answers. Its own text for that may be long.
type answer int

func (a answer) Error() string {
	return strings.TrimSpace(fmt.Sprintf("the receiver answers %d %s", int(a), http.StatusText(int(a))))
}

// refusal is the error of a receiver that refuses a request. To send it again does not help.
type refusal struct{ answer }

func isRefusal(err error) bool { return errors.As(err, new(refusal)) }

// testType is the type of the event of a test. No journal has one.
const testType events.Type = "test"

// Test sends a message that is marked as a test, once, in the format of the receiver. The error has no
// secret in it.
func Test(ctx context.Context, r config.Notify, relay string) error {
	r.On = []string{string(testType)}
	return send(ctx, r, payload(r, relay, []events.Event{{
		Time: time.Now().UTC(), Type: testType, By: events.ByOperator,
		Text: "this is a test of the receiver " + r.Name + ": nothing has happened, and there is nothing to do",
	}}, time.Now()))
}

// send sends a receiver a document, once. The error has no secret in it.
func send(ctx context.Context, r config.Notify, document any) error {
	body, err := json.Marshal(document)
	if err != nil {
		return err
	}
	address, err := addressOf(r)
	if err != nil {
		return err
	}
	transport, err := transportOf(r.TLS)
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, r.Timeout.D())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return errors.New("the URL is not valid") // the error would have it
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "meshrelay")
	token := ""
	if r.TokenFile != "" {
		if token, err = secret(r.TokenFile); err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		if r.URLFile != "" {
			return masked(withoutURL(err), token, req.URL.RequestURI(), req.URL.Path, req.URL.RawQuery)
		}
		return masked(withoutURL(err), token)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		return nil
	case code == http.StatusBadRequest || code == http.StatusRequestEntityTooLarge || code == http.StatusUnprocessableEntity:
		return refusal{answer(code)}
	default:
		return answer(code)
	}
}

// withoutURL returns an error of a request without the URL.
func withoutURL(err error) error {
	var of *url.Error
	if !errors.As(err, &of) {
		return err
	}
	if of.Timeout() {
		return errors.New("no answer in time")
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil && op.Addr != nil {
		// Without the address of this end: its port is another one each time, and so would be the error.
		return errors.New(text.Shorten(fmt.Sprintf("%s %s: %v", op.Op, op.Addr, op.Err), maxError))
	}
	return errors.New(text.Shorten(of.Err.Error(), maxError)) // it may quote the answer
}

// minMasked is how long a text is that masked looks for: shorter ones are in every error.
const minMasked = 4

// masked returns an error without some secrets. What a receiver answers may repeat them, and the error
// quotes it.
func masked(err error, secrets ...string) error {
	why := err.Error()
	for _, one := range secrets {
		if len(one) >= minMasked {
			why = strings.ReplaceAll(why, one, "(secret)")
		}
	}
	return errors.New(why)
}

// addressOf returns the URL of a receiver.
func addressOf(r config.Notify) (string, error) {
	address := r.URL
	if r.URLFile != "" {
		var err error
		if address, err = secret(r.URLFile); err != nil {
			return "", err
		}
		if err := config.CheckURL(address); err != nil {
			return "", fmt.Errorf("what is in %s: %w", r.URLFile, err)
		}
	}
	const path = "/api/v2/alerts"
	if r.Format == config.NotifyAlertmanager && !strings.HasSuffix(address, path) {
		address = strings.TrimSuffix(address, "/") + path
	}
	return address, nil
}

// secret returns what a file has, without the space around it.
func secret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	switch {
	case err != nil:
		return "", err
	case len(content) > maxSecret:
		return "", fmt.Errorf("%s is longer than %d bytes", path, maxSecret)
	case strings.ContainsAny(strings.TrimSpace(string(content)), "\r\n"):
		return "", fmt.Errorf("%s has more than one line", path)
	}
	return strings.TrimSpace(string(content)), nil
}

// transportOf returns a transport for one request: requests are rare, and files may change between two.
func transportOf(t *config.NotifyTLS) (*http.Transport, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	if t == nil {
		return transport, nil
	}
	transport.TLSClientConfig.ServerName = t.ServerName
	if t.CAFile != "" {
		roots, err := certfile.Roots(t.CAFile)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig.RootCAs = roots
	}
	if t.CertFile != "" {
		own, err := certfile.Pair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig.Certificates = []tls.Certificate{own}
	}
	return transport, nil
}
