package bearer

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"meshrelay/internal/certfile"
	"meshrelay/internal/lastgood"
)

const (
	// fetchTimeout bounds one request for keys.
	fetchTimeout = 3 * time.Second
	// fetchPause is the least time between two requests that tokens with an unknown key cause.
	fetchPause = 5 * time.Second
)

// source has the present keys of an issuer: of a file, or of a URL.
type source struct {
	file   *lastgood.File[*Keys] // nil: there is a URL
	remote *remote
}

func openSource(i Issuer) (*source, error) {
	if i.JWKSURL != "" {
		return &source{remote: &remote{url: i.JWKSURL, caFile: i.CAFile, turn: semaphore.NewWeighted(1)}}, nil
	}
	// A set without keys counts: whoever empties it trusts the issuer no more.
	file, err := lastgood.Open(func() (*Keys, error) { return readKeys(i.JWKSFile, 0) }, i.JWKSFile)
	return &source{file: file}, err
}

// now returns the present keys, nil while none have been read.
func (s *source) now() *Keys {
	if s.file != nil {
		return s.file.Get()
	}
	return s.remote.keys.Load()
}

// refresh reads the keys again. After an error, the keys are those of before.
func (s *source) refresh(ctx context.Context) error {
	if s.file != nil {
		_, err := s.file.Read()
		return err
	}
	return s.remote.fetch(ctx, 0)
}

// VerifySignature implements oidc.KeySet. For a key that is not known, it asks the URL again.
func (s *source) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	keys := s.now()
	payload, err := keys.VerifySignature(ctx, jwt)
	if !errors.Is(err, errUnknownKey) || s.remote == nil {
		return payload, err
	}
	if s.remote.fetch(ctx, fetchPause) != nil || s.now() == keys {
		return nil, err
	}
	return s.now().VerifySignature(ctx, jwt)
}

// remote has the keys that a URL serves. Any goroutine may call its methods.
type remote struct {
	url, caFile string
	keys        atomic.Pointer[Keys]

	turn  *semaphore.Weighted // guards all below
	asked time.Time
	sum   [sha256.Size]byte // of the body with the keys
}

// fetch asks the URL, unless it was asked less than pause ago. Others wait meanwhile.
func (r *remote) fetch(ctx context.Context, pause time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	if err := r.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.turn.Release(1)
	if time.Since(r.asked) < pause {
		return nil
	}
	r.asked = time.Now()
	body, err := r.get(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", r.url, err)
	}
	sum := sha256.Sum256(body)
	if r.keys.Load() != nil && sum == r.sum {
		return nil
	}
	keys, err := parseKeys(body)
	if err != nil {
		return fmt.Errorf("%s has no JWKS that is accepted: %w", r.url, err)
	}
	r.sum = sum
	r.keys.Store(keys)
	return nil
}

func (r *remote) get(ctx context.Context) ([]byte, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if r.caFile != "" {
		roots, err := certfile.Roots(r.caFile)
		if err != nil {
			return nil, err
		}
		secure.RootCAs = roots
	}
	client := http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answers %d: want 200 and a JWKS; redirects are not followed", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKeySet+1))
	if err == nil && len(body) > maxKeySet {
		err = fmt.Errorf("the answer is larger than %d KiB", maxKeySet>>10)
	}
	return body, err
}
