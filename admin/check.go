package admin

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"

	"meshrelay/internal/kube"
	"meshrelay/mirror"
)

const (
	// MaxCheckedBytes bounds the text of one check.
	MaxCheckedBytes = 1 << 20
	// MaxChecked bounds the resources of one check.
	MaxChecked = 1000
	checkPath  = "/check"
)

// Checked tells what a relay would do with resources that are not applied yet.
type Checked struct {
	// Upstream is the upstream whose resources they would be.
	Upstream string `json:"upstream"`
	// Resources counts them.
	Resources int       `json:"resources"`
	Findings  []Finding `json:"findings"`
	// Changes are what completion and rewrite rules would change. They are no findings.
	Changes []CheckedChange `json:"changes"`
}

// Finding is something that keeps a resource, or another one, from what its author may expect.
type Finding struct {
	mirror.Key
	// Outcome is as in an Explanation: "left out", "refused", "shadowed", "rejected" or "united". It is "served" when
	// the resource is served in place of another upstream's copy, or with a host that another cluster claims.
	Outcome Outcome `json:"outcome"`
	// Reason is the word for the rule that leaves it out, Detail a sentence.
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail"`
}

// CheckedChange is a resource with the changes by completion and rewrite rules.
type CheckedChange struct {
	mirror.Key
	Changes []string `json:"changes"`
	// Served is the resource as clients would get it.
	Served *kube.Object `json:"served"`
}

// check answers with what the relay would do with the resources in the body of a request. It changes nothing.
func (s *Server) check(w http.ResponseWriter, r *http.Request) {
	if !s.deps.Ready().Ready { // it may lack what other upstreams have
		s.refuse(w, r, refuse(http.StatusServiceUnavailable, "the relay is not ready, and may lack resources: \"relay status\" tells why; try again when it is ready"))
		return
	}
	text, release, err := s.preview(r, MaxCheckedBytes)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	answer, err := s.deps.Check(ctx, r.URL.Query().Get("upstream"), text)
	switch {
	case err == nil:
		s.answer(w, answer)
	case interrupted(err):
		s.refuse(w, r, err)
	default:
		s.refuse(w, r, refusal{http.StatusBadRequest, err})
	}
}

// preview reads the body of a request that asks what a config or resources would do. One such request is answered at a
// time: until release.
func (s *Server) preview(r *http.Request, most int64) (body []byte, release func(), err error) {
	select {
	case s.previews <- struct{}{}:
	default:
		return nil, nil, refuse(http.StatusServiceUnavailable, "another plan or check is being made; try again")
	}
	release = func() { <-s.previews }
	if body, err = io.ReadAll(io.LimitReader(r.Body, most+1)); err != nil || int64(len(body)) > most {
		release()
		return nil, nil, refusal{http.StatusBadRequest, errors.Join(errors.New("the file can not be read, or has more than 1 MiB"), err)}
	}
	return body, release, nil
}

// Check asks a relay what it would do with the resources of a YAML text, as those of an upstream.
func (c Client) Check(ctx context.Context, upstream string, text []byte) (Checked, error) {
	c.body = text
	return ask[Checked](ctx, c, http.MethodPost, checkPath, url.Values{"upstream": {upstream}})
}
