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
	answer, err := s.checked(r)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	s.answer(w, answer)
}

func (s *Server) checked(r *http.Request) (*Checked, error) {
	select {
	case s.previews <- struct{}{}:
		defer func() { <-s.previews }()
	default:
		return nil, refuse(http.StatusServiceUnavailable, "another plan or check is being made; try again")
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, MaxCheckedBytes+1))
	if err != nil || len(text) > MaxCheckedBytes {
		return nil, refusal{http.StatusBadRequest, errors.Join(errors.New("the resources can not be read, or have more than 1 MiB: check fewer at a time"), err)}
	}
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	answer, err := s.deps.Check(ctx, r.URL.Query().Get("upstream"), text)
	if err != nil && !interrupted(err) {
		err = refusal{http.StatusBadRequest, err}
	}
	return answer, err
}

// Check asks a relay what it would do with the resources of a YAML text, as those of an upstream.
func (c Client) Check(ctx context.Context, upstream string, text []byte) (Checked, error) {
	c.body = text
	return ask[Checked](ctx, c, http.MethodPost, checkPath, url.Values{"upstream": {upstream}})
}
