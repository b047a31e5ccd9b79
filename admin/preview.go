package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"meshrelay/sink"
)

// maxConfigBytes bounds a config file that a client sends.
const maxConfigBytes = 1 << 20

// Preview is what a config file would change of what a running relay has.
type Preview struct {
	Sinks []sink.Change `json:"sinks,omitempty"` // that come, leave or change
	Views []ViewChange  `json:"views,omitempty"` // that come, leave or show something else
}

// ViewChange tells what the clients of a view see of the present resources, now and as planned.
type ViewChange struct {
	View    string `json:"view"` // such as "view dr", "listener 0.0.0.0:15010", "clients without a view"
	Now     int    `json:"now"`
	Planned int    `json:"planned"`
	Gained  int    `json:"gained"`
	Lost    int    `json:"lost"`
	Changed int    `json:"changed"` // shown from another upstream
	// Policies are the first of those of Lost without which something is open that was not.
	Policies []string `json:"policies,omitempty"`
	Opens    int      `json:"opens"` // how many such there are
	Note     string   `json:"note,omitempty"`
}

// preview answers with what the config file in the request would change for sinks and views. One such request is answered
// at a time.
func (s *Server) preview(_ http.ResponseWriter, r *http.Request, o *order) (any, error) {
	o.reads = true
	if !s.previews.TryLock() {
		return nil, Refuse(http.StatusServiceUnavailable, "another plan is being made; try again")
	}
	defer s.previews.Unlock()
	text, err := io.ReadAll(io.LimitReader(r.Body, maxConfigBytes+1))
	if err != nil || len(text) > maxConfigBytes {
		return nil, refusal{http.StatusBadRequest, errors.Join(errors.New("the file can not be read, or has more than 1 MiB"), err)}
	}
	changes, err := s.deps.Preview(r.Context(), text)
	if err != nil && !interrupted(err) {
		err = refusal{http.StatusUnprocessableEntity, err}
	}
	o.after = fmt.Sprintf("nothing is changed; sinks in the plan: %d, views: %d", len(changes.Sinks), len(changes.Views))
	return changes, err
}

// Preview returns what a config file would change for sinks and views. It needs the socket.
func (c Client) Preview(ctx context.Context, config []byte) (Preview, error) {
	c.body = config
	return ask[Preview](ctx, c, http.MethodPost, "/plan", nil)
}
