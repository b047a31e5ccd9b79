// Package watchlist reads what a Kubernetes API server sends to a watch, frame by frame, and no
// more: it owns the connection, and knows no objects.
package watchlist

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// Client returns a client of an API server whose certificate is in a file.
func Client(certificate string) (*http.Client, error) {
	pem, err := os.ReadFile(certificate)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", certificate)
	}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute,
	}}, nil
}

// complete is in the bookmark after all that there is.
var complete = []byte(`"k8s.io/initial-events-end":"true"`)

// Read asks for all objects at a URL and for what changes after that, and hands each frame to
// frame. It calls synced once, when all have come. It returns when the stream ends, or ctx.
func Read(ctx context.Context, client *http.Client, url, token string, frame func([]byte), synced func()) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%s: %s", resp.Status, b)
	}
	r, whole := bufio.NewReaderSize(resp.Body, 64<<10), false
	var long []byte
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, line...)
			continue
		}
		if err != nil {
			return err
		}
		if len(long) > 0 {
			long = append(long, line...)
			line, long = long, long[:0]
		}
		if !whole && bytes.Contains(line, complete) {
			whole = true
			synced()
			continue
		}
		frame(line)
	}
}
