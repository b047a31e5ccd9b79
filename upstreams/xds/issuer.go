package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/config"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/apiserver"
)

const (
	tokenSeconds = 3600             // the life of tokens that is asked for
	maxToken     = 64 << 10         // bytes
	tokenRetry   = 15 * time.Second // after a request that has failed
	deniedAge    = 10 * time.Minute // least age of a token that is replaced because a server denies it
)

// issuer asks the API server of a cluster for the tokens of an upstream. Any goroutine may call read, state and denied.
type issuer struct {
	section *Token
	path    string // of the requests
	place   string // the cluster
	client  *apiserver.Client
	log     *slog.Logger
	again   chan struct{}

	mu          sync.Mutex // guards all below
	token       string     // empty before the first one
	asked, ends time.Time
	err         error // of the newest request
}

// newIssuer returns an issuer that has asked for nothing, or nil if the config has no section for it.
func newIssuer(cfg config.Upstream, env upstreams.Env, log *slog.Logger) *issuer {
	t := sectionOf(cfg).Token
	if t == nil {
		return nil
	}
	return &issuer{section: t, log: log, again: make(chan struct{}, 1), client: apiserver.NewClient(t.credentials(), "meshrelay (upstream "+cfg.Name+")"),
		path:  "/api/v1/namespaces/" + cmp.Or(t.Namespace, env.Node.Namespace) + "/serviceaccounts/" + t.ServiceAccount + "/token",
		place: strings.TrimSuffix("the cluster of "+t.credentials().Place()+", context "+t.Cluster.Context, ", context ")}
}

// run asks for a token after next, at 80 % of the life of each, and sooner after failures and denials.
func (i *issuer) run(ctx context.Context, next time.Duration) error {
	defer i.client.Close()
	for ; ctx.Err() == nil; next = i.renew(ctx) {
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-i.again:
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// renew asks for a token, and returns the time until the next request. A failure takes no token away. The life counts
// from the request, so that the clocks of both sides may differ.
func (i *issuer) renew(ctx context.Context) time.Duration {
	now := time.Now()
	token, life, err := i.ask(ctx)
	i.mu.Lock()
	defer i.mu.Unlock()
	if fmt.Sprint(err) != fmt.Sprint(i.err) && ctx.Err() == nil {
		i.log.Warn("result of token requests changed", "from", i.place, "err", err)
	}
	if i.asked, i.err = now, err; err != nil {
		return tokenRetry
	}
	i.token, i.ends = token, now.Add(life)
	return life * 4 / 5
}

// ask sends one TokenRequest.
func (i *issuer) ask(ctx context.Context) (token string, life time.Duration, err error) {
	if err := i.client.Refresh(ctx); err != nil && !errors.As(err, new(apiserver.Kept)) {
		return "", 0, err
	}
	var answer struct {
		Spec   struct{ ExpirationSeconds int64 }
		Status struct{ Token string }
	}
	err = i.client.Explain(i.client.Current().Write(ctx, apiserver.Write{Method: http.MethodPost, Path: i.path, Type: apiserver.TypeJSON, Body: fmt.Appendf(nil,
		`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":[%q],"expirationSeconds":%d}}`, i.section.Audience, tokenSeconds)}, &answer))
	token = answer.Status.Token
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		err = fmt.Errorf("%w: create the service account %s and the right to create serviceaccounts/token of it: relay init --cluster prints both", err, i.section.ServiceAccount)
	case err == nil && (token == "" || len(token) > maxToken || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' })):
		err = errors.New("the answer has no token: look whether the server of the kubeconfig is an API server")
	}
	seconds := min(max(cmp.Or(answer.Spec.ExpirationSeconds, tokenSeconds), 60), 24*tokenSeconds)
	return token, time.Duration(seconds) * time.Second, err
}

// read returns the token, or an error if there is none or its life is over.
func (i *issuer) read() (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Now().Before(i.ends) {
		return i.token, nil
	}
	return "", fmt.Errorf("no token from %s: %w", i.place, i.err)
}

// state returns the end of the token, and why there is no new one, empty if there is. A nil issuer has neither.
func (i *issuer) state() (ends time.Time, problem string) {
	if i == nil {
		return ends, ""
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err != nil {
		problem = fmt.Sprintf("no new token from %s: %v", i.place, i.err)
	}
	if problem != "" && time.Now().Before(i.ends) {
		problem += "; the one of before is used until " + i.ends.UTC().Format(time.RFC3339)
	}
	return i.ends, problem
}

// denied has the token replaced, unless it is new: an account that was made anew has the tokens of before denied.
func (i *issuer) denied() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Since(i.asked) >= deniedAge {
		select {
		case i.again <- struct{}{}:
		default:
		}
	}
}
