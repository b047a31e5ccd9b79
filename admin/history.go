package admin

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
)

// RevisionDiff is how a revision of an upstream differs from the one before.
type RevisionDiff struct {
	Revision state.Revision `json:"revision"`
	// Before and After are the objects that differ: one of both where one was added or removed.
	Before []kube.Object `json:"before"`
	After  []kube.Object `json:"after"`
	// More counts the resources that differ, too, and are left out.
	More int `json:"more,omitempty"`
	// Oldest tells that no revision before it is kept: all that there was then is in After.
	Oldest bool `json:"oldest,omitempty"`
}

// NewRevisionDiff returns the differences of a revision as objects.
func NewRevisionDiff(d upstreams.Differences) (RevisionDiff, error) {
	out := RevisionDiff{Revision: d.Revision, Before: []kube.Object{}, After: []kube.Object{}, More: d.More, Oldest: d.Oldest}
	for _, one := range d.Resources {
		for r, to := range map[*mirror.Resource]*[]kube.Object{one.Before: &out.Before, one.After: &out.After} {
			if r == nil {
				continue
			}
			o, err := kube.New(r, "", r.Version())
			if err != nil {
				return out, err
			}
			*to = append(*to, *o)
		}
	}
	return out, nil
}

// diff answers with what a revision has changed: that of the parameter revision, or the newest.
func (s *Server) diff(r *http.Request, upstream string) (any, error) {
	revision := uint64(0)
	if text := r.FormValue("revision"); text != "" {
		var err error
		if revision, err = strconv.ParseUint(text, 10, 64); err != nil || revision == 0 {
			return nil, badRequestf("revision is %.32q: want the number of a revision: /history lists them", text)
		}
	}
	d, err := s.deps.Controls.Diff(upstream, revision)
	if err != nil {
		return nil, err
	}
	return NewRevisionDiff(d)
}

// Diff returns what a revision of an upstream has changed; 0 is the newest.
func (c Client) Diff(ctx context.Context, upstream string, revision uint64) (RevisionDiff, error) {
	query := url.Values{}
	if revision > 0 {
		query.Set("revision", strconv.FormatUint(revision, 10))
	}
	return ask[RevisionDiff](ctx, c, http.MethodGet, ofUpstream(upstream, "diff"), query)
}
