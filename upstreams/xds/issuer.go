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
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-i.again:
		case <-time.After(next):
		}
		next = i.renew(ctx)
	}
}

// renew asks for a token, and returns the time until the next request. Lives count from the request: clocks may differ.
func (i *issuer) renew(ctx context.Context) time.Duration {
	now := time.Now()
	token, life, err := i.ask(ctx)
	i.mu.Lock()
	defer i.mu.Unlock()
	if (err == nil) != (i.err == nil) && ctx.Err() == nil { // texts differ by ports
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
	const request = `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":[%q],"expirationSeconds":%d}}`
	err = i.client.Explain(i.client.Current().Write(ctx, apiserver.Write{Method: http.MethodPost, Path: i.path, Type: apiserver.TypeJSON,
		Body: fmt.Appendf(nil, request, i.section.Audience, tokenSeconds)}, &answer))
	token = answer.Status.Token
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		err = fmt.Errorf("%w: create the service account %s and the right to create serviceaccounts/token of it: relay init --cluster prints both", err, i.section.ServiceAccount)
	}
	if err == nil && (token == "" || len(token) > 64<<10 || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' })) {
		err = errors.New("the answer has no token: look whether the server of the kubeconfig is an API server")
	}
	seconds := min(max(cmp.Or(answer.Spec.ExpirationSeconds, tokenSeconds), 60), 24*tokenSeconds)
	return token, time.Duration(seconds) * time.Second, err
}

// read returns the token, or an error if there is none or its life is over.
func (i *issuer) read() (string, error) {
	token, problem := i.state()
	if token == "" {
		return "", errors.New(cmp.Or(problem, "the token from "+i.place+" is over, and the next one is not here yet"))
	}
	return token, nil
}

// state returns the token, empty if its life is over, and why there is no new one. A nil issuer has neither.
func (i *issuer) state() (token, problem string) {
	if i == nil {
		return "", ""
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err != nil {
		problem = fmt.Sprintf("no new token from %s: %v", i.place, i.err)
	}
	switch {
	case !time.Now().Before(i.ends):
		return "", problem
	case problem != "":
		problem += "; the one of before is used until " + i.ends.UTC().Format(time.RFC3339)
	}
	return i.token, problem
}

// denied has the token replaced, unless it is new: an account that was made anew has the tokens of before denied.
func (i *issuer) denied() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Since(i.asked) >= deniedAge && len(i.again) == 0 {
		i.again <- struct{}{} // there is room: nobody else sends
	}
}
