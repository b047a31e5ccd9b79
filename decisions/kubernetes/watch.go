package kubernetes

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/decisions"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// follow lists the object, and watches it for a while. It returns without an error when the watch has ended, so that the
// next list finds out what no event has told, and whether the server answers.
func (s *Store) follow(ctx context.Context, took func(decisions.Log, []string, error)) error {
	conn, err := s.refresh(ctx)
	if err != nil {
		return err
	}
	o, version, err := s.list(ctx, conn)
	if err != nil {
		return s.explain("list", err)
	}
	if err := s.take(ctx, conn, o, took); err != nil {
		return err
	}
	return s.watch(ctx, conn, version, func(o *object) error {
		log, problems, err := o.log()
		if err == nil && log.State().Sequence < s.sequence() {
			return nil // an event from before an append of this process
		}
		if err == nil {
			s.note(log)
			took(log, append([]string{}, problems...), nil)
		}
		return err // the next list tells more
	})
}

// selecting returns the query that selects the object.
func (s *Store) selecting() url.Values {
	return url.Values{"fieldSelector": {"metadata.name=" + s.name}}
}

// list returns the object, nil if there is none, and the version of the list.
func (s *Store) list(ctx context.Context, conn *apiserver.Conn) (*object, string, error) {
	ctx, cancel := context.WithTimeout(ctx, apiserver.WriteTimeout)
	defer cancel()
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []*object `json:"items"`
	}
	err := conn.Stream(ctx, s.collection()+"?"+s.selecting().Encode(), apiserver.AcceptJSON, maxObject, func(body io.Reader) error { return decode(body, &list) })
	if err != nil {
		return nil, "", err
	}
	if len(list.Items) == 0 {
		return nil, list.Metadata.ResourceVersion, nil
	}
	return list.Items[0], list.Metadata.ResourceVersion, nil
}

// take passes on the log of an object. It writes the log anew if the object has lost decisions.
func (s *Store) take(ctx context.Context, conn *apiserver.Conn, o *object, took func(decisions.Log, []string, error)) error {
	log, problems, err := s.join(o)
	if err != nil {
		return err
	}
	if found, _, _ := o.log(); found.State().Sequence < log.State().Sequence {
		if err := s.put(ctx, conn, o, log); err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err // after a conflict, the next list tells
		}
	}
	s.note(log)
	took(log, append([]string{}, problems...), nil)
	return nil
}

// watch calls f with each change of the object after a version. It returns nil at the usual end.
func (s *Store) watch(ctx context.Context, conn *apiserver.Conn, version string, f func(*object) error) error {
	seconds := max(1, int(s.pace.Watch/time.Second))
	ctx, cancel := context.WithTimeout(ctx, s.pace.Watch+time.Second)
	defer cancel()
	query := s.selecting()
	query.Set("watch", "true")
	query.Set("resourceVersion", version)
	query.Set("timeoutSeconds", strconv.Itoa(seconds))
	resp, err := conn.Get(ctx, s.collection(), query, apiserver.AcceptJSON)
	if err != nil {
		if ctx.Err() != nil || apierrors.IsGone(err) || apierrors.IsResourceExpired(err) {
			return nil
		}
		return s.explain("watch", err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxObject)
	for lines.Scan() {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return s.explain("watch", err)
		}
		switch o := (*object)(nil); event.Type {
		case "ADDED", "MODIFIED":
			o = &object{}
			if err := json.Unmarshal(event.Object, o); err != nil {
				return s.explain("watch", err)
			}
			if err := f(o); err != nil {
				return err
			}
		case "DELETED", "ERROR":
			return nil // the next list tells
		}
	}
	return nil // a watch may end at any time
}
