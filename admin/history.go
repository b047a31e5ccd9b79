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
	// Before and After are the objects that differ. An added object is only in After, a removed one only in
	// Before.
	Before []kube.Object `json:"before"`
	After  []kube.Object `json:"after"`
	// More counts other resources that differ.
	More int `json:"more,omitempty"`
	// Oldest is set when no earlier revision is kept: After then has all objects of the revision.
	Oldest bool `json:"oldest,omitempty"`
}

// newRevisionDiff returns the differences of a revision as objects.
func newRevisionDiff(d upstreams.Differences) (RevisionDiff, error) {
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

// diff answers with the changes of the revision in the parameter revision, or of the newest one.
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
	return newRevisionDiff(d)
}

// Diff returns the changes of a revision of an upstream; 0 is the newest. It needs the socket.
func (c Client) Diff(ctx context.Context, upstream string, revision uint64) (RevisionDiff, error) {
	query := url.Values{}
	if revision > 0 {
		query.Set("revision", strconv.FormatUint(revision, 10))
	}
	return ask[RevisionDiff](ctx, c, http.MethodGet, ofUpstream(upstream, "diff"), query)
}
