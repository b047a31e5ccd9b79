package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// maxConfigBytes bounds a config file that a client sends.
const maxConfigBytes = 1 << 20

// AccessQuestion asks what a client would get.
type AccessQuestion struct {
	// Identities are what it has proven.
	Identities []string
	// Listener is the address of a listener. It may be empty if there is only one.
	Listener string
	// Namespace and ServiceAccount are what its node claims. They may be empty.
	Namespace, ServiceAccount string
}

// AccessAnswer is what a client would get, or why it would be refused.
type AccessAnswer struct {
	Allowed bool `json:"allowed"`
	// Reason is why the client would be refused.
	Reason     string   `json:"reason,omitempty"`
	Identities []string `json:"identities"`
	Listener   string   `json:"listener"`
	// Rule and View are empty if the config has none.
	Rule string `json:"rule,omitempty"`
	View string `json:"view,omitempty"`
	// Shows are the selections of the view and of the rule. A resource must pass both. Without one, everything
	// passes.
	Shows []AccessSelection `json:"shows,omitempty"`
	// Debug is set if the rule lets the client request debug types. The listener must let it, too.
	Debug bool `json:"debug"`
}

// AccessSelection is what a view or a rule shows. An empty list means all.
type AccessSelection struct {
	// Of is "view NAME" or "rule NAME".
	Of         string   `json:"of"`
	Upstreams  []string `json:"upstreams,omitempty"`
	Kinds      []string `json:"kinds,omitempty"`
	Include    []string `json:"namespaces,omitempty"`
	Exclude    []string `json:"excludedNamespaces,omitempty"`
	Selector   string   `json:"selector,omitempty"`
	Expression string   `json:"expression,omitempty"`
}

// canI answers an AccessQuestion.
func (s *Server) canI(r *http.Request, _ string) (any, error) {
	q := r.URL.Query()
	answer, err := s.deps.CanI(AccessQuestion{q["identity"], q.Get("listener"), q.Get("namespace"), q.Get("serviceAccount")})
	if err != nil {
		return nil, refusal{http.StatusBadRequest, err}
	}
	return answer, nil
}

// preview reads the body of a request that asks what a config would do. One such request is answered at a
// time: until release.
func (s *Server) preview(r *http.Request, most int64) (body []byte, release func(), err error) {
	select {
	case s.previews <- struct{}{}:
	default:
		return nil, nil, refuse(http.StatusServiceUnavailable, "another plan is being made; try again")
	}
	release = func() { <-s.previews }
	if body, err = io.ReadAll(io.LimitReader(r.Body, most+1)); err != nil || int64(len(body)) > most {
		release()
		return nil, nil, refusal{http.StatusBadRequest, errors.Join(errors.New("the file can not be read, or has more than 1 MiB"), err)}
	}
	return body, release, nil
}

// previewing answers with what the config file in the request would change for the clients or the sinks.
func previewing[T any](s *Server, of string, preview func(context.Context, []byte) ([]T, error)) action {
	return func(_ http.ResponseWriter, r *http.Request, o *order) (any, error) {
		o.reads = true
		text, release, err := s.preview(r, maxConfigBytes)
		if err != nil {
			return nil, err
		}
		defer release()
		changes, err := preview(r.Context(), text)
		if err != nil && !interrupted(err) {
			err = refusal{http.StatusUnprocessableEntity, err}
		}
		o.after = fmt.Sprintf("nothing is changed; %s in the plan: %d", of, len(changes))
		return notNil(changes), err
	}
}

// CanI returns what a client would get. It needs the socket.
func (c Client) CanI(ctx context.Context, q AccessQuestion) (AccessAnswer, error) {
	return ask[AccessAnswer](ctx, c, http.MethodGet, "/authorization", url.Values{
		"identity": q.Identities, "listener": {q.Listener}, "namespace": {q.Namespace}, "serviceAccount": {q.ServiceAccount},
	})
}

// Preview returns what a config file would change for the "clients" or the "sinks". It needs the socket.
func Preview[T any](ctx context.Context, c Client, of string, config []byte) ([]T, error) {
	c.body = config
	return ask[[]T](ctx, c, http.MethodPost, "/plan/"+of, nil)
}
