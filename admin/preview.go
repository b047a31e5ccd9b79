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

// previewSinks answers with what the config file in the request would change for the sinks. One such request is answered
// at a time.
func (s *Server) previewSinks(_ http.ResponseWriter, r *http.Request, o *order) (any, error) {
	o.reads = true
	select {
	case s.previews <- struct{}{}:
		defer func() { <-s.previews }()
	default:
		return nil, Refuse(http.StatusServiceUnavailable, "another plan is being made; try again")
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, maxConfigBytes+1))
	if err != nil || len(text) > maxConfigBytes {
		return nil, refusal{http.StatusBadRequest, errors.Join(errors.New("the file can not be read, or has more than 1 MiB"), err)}
	}
	changes, err := s.deps.PreviewSinks(r.Context(), text)
	if err != nil && !interrupted(err) {
		err = refusal{http.StatusUnprocessableEntity, err}
	}
	o.after = fmt.Sprintf("nothing is changed; sinks in the plan: %d", len(changes))
	return notNil(changes), err
}

// PreviewSinks returns what a config file would change for the sinks. It needs the socket.
func (c Client) PreviewSinks(ctx context.Context, config []byte) ([]sink.Change, error) {
	c.body = config
	return ask[[]sink.Change](ctx, c, http.MethodPost, "/plan/sinks", nil)
}
