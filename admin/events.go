package admin

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"meshrelay/events"
	"meshrelay/internal/visible"
	"meshrelay/mirror"
)

const (
	// maxFollowers is the most event streams at the same time. They take no slots of debug documents.
	maxFollowers = 64
	// heartbeat is how often an event stream sends a comment, so that the client knows that it works.
	heartbeat = 15 * time.Second
	// followPage is how many events a stream reads at a time.
	followPage = 200

	eventStream = "text/event-stream"
)

// eventParameters are the parameters of /debug/events.
var eventParameters = []string{"after", "before", "client", "kind", "limit", "namespace", "orders", "q", "since", "tools", "type", "until", "upstream"}

// queryOf parses the parameters of /debug/events. An unknown parameter is an error: a misspelt filter would show
// all events.
func queryOf(values url.Values) (q events.Query, err error) {
	if err := only(values, "/debug/events", eventParameters); err != nil {
		return q, err
	}
	for name, to := range map[string]*uint64{"after": &q.After, "before": &q.Before} {
		if text := values.Get(name); text != "" {
			if *to, err = strconv.ParseUint(text, 10, 64); err != nil {
				return q, badRequestf("%s is %.32q: want the number of an event", name, text)
			}
		}
	}
	if text := values.Get("limit"); text != "" {
		if q.Limit, err = strconv.Atoi(text); err != nil || q.Limit < 1 || q.Limit > events.MaxPage {
			return q, badRequestf("limit is %.32q: want a number from 1 to %d", text, events.MaxPage)
		}
	}
	for name, to := range map[string]*time.Time{"since": &q.Since, "until": &q.Until} {
		if text := values.Get(name); text != "" {
			if *to, err = time.Parse(time.RFC3339, text); err != nil {
				return q, badRequestf("%s is %.40q: want a time such as 2026-11-22T03:12:00Z", name, text)
			}
		}
	}
	if text := values.Get("kind"); text != "" {
		if q.Kinds, err = mirror.ParseKinds(text); err != nil {
			return q, badRequestf("kind: %v", err)
		}
	}
	if q.Types, err = events.ParseTypes(values.Get("type")); err != nil {
		return q, badRequestf("type: %v", err)
	}
	q.Upstream, q.Client, q.Namespace, q.Text = values.Get("upstream"), values.Get("client"), values.Get("namespace"), values.Get("q")
	if q.Orders, err = switchOf(values, "orders"); err != nil {
		return q, err
	}
	tools, err := switchOf(values, "tools")
	q.NoTools = !tools && q.Client == "" // the named client may be a tool
	return q, err
}

// events returns a page of the journal.
func (d *Debug) events(values url.Values) (page events.Page, err error) {
	q, err := queryOf(values)
	if err != nil {
		return page, err
	}
	return d.views.Events.Read(q), nil
}

// events serves a page of the journal or, if the request accepts text/event-stream, a stream of events.
func (s *Server) events(page http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept"), eventStream) {
			page.ServeHTTP(w, r)
			return
		}
		s.withinHost(s.followEvents)(w, r)
	}
}

// followEvents streams the events that match a filter: those after Last-Event-ID or the parameter after, or only
// new ones. An event of the stream is StreamEvent, StreamStages or StreamMissed.
func (s *Server) followEvents(w http.ResponseWriter, r *http.Request) {
	select {
	case s.followers <- struct{}{}:
		defer func() { <-s.followers }()
	default:
		s.refuse(w, r, Refuse(http.StatusServiceUnavailable, "too many event streams at the same time: close one, or read pages"))
		return
	}
	q, err := queryOf(r.URL.Query())
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	if text := r.Header.Get("Last-Event-ID"); text != "" {
		if q.After, err = strconv.ParseUint(text, 10, 64); err != nil {
			s.refuse(w, r, badRequestf("Last-Event-ID is %.32q: want the number of an event", text))
			return
		}
	}
	journal := s.deps.Debug.views.Events
	cursor := journal.Newest()
	if q.After > 0 {
		cursor = journal.From(q.After)
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{}) // a stream outlives readTimeout, and reads nothing more
	w.Header().Set("Content-Type", eventStream)
	ended, _ := r.Context().Value(endingKey{}).(<-chan struct{})
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	out := visible.NewWriter(w)
	fmt.Fprint(w, ": the journal of events\n\n")
	for {
		changed := journal.Changed() // before Next, so that no change is missed
		for {
			endIn(w, streamTimeout)
			news, stages, next, missed := journal.Next(q.Filter, cursor, followPage)
			if missed {
				fmt.Fprintf(w, "event: %s\ndata: {}\n\n", StreamMissed)
			}
			err := writeStream(out, StreamEvent, news)
			if err == nil {
				err = writeStream(out, StreamStages, stages)
			}
			if err != nil {
				return // the client has gone
			}
			if cursor = next; len(news) < followPage {
				break
			}
		}
		if rc.Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-beat.C:
			endIn(w, streamTimeout)
			fmt.Fprint(w, ": still here\n\n")
		case <-r.Context().Done():
			return
		case <-ended:
			return
		}
	}
}

func writeStream(w io.Writer, name string, all []events.Event) error {
	for i := range all {
		data, err := json.Marshal(&all[i])
		if err != nil {
			return err
		}
		id := ""
		if name == StreamEvent {
			id = fmt.Sprintf("id: %d\n", all[i].Seq)
		}
		if _, err := fmt.Fprintf(w, "%sevent: %s\ndata: %s\n\n", id, name, data); err != nil {
			return err
		}
	}
	return nil
}

// endingKey is the key of a channel that is closed when the server begins to end.
type endingKey struct{}

// The events of a stream: a new event of the journal, an earlier one with new stages, or the notice that some
// events were missed because the journal does not keep them any more.
const (
	StreamEvent  = "event"
	StreamStages = "stages"
	StreamMissed = "missed"
)

// maxStreamLine bounds a line of an event stream, in bytes.
const maxStreamLine = 1 << 20

// FollowEvents calls f with the events after the sequence number after, then with new ones, until ctx or the stream
// ends, or f fails. It always returns an error.
func (c Client) FollowEvents(ctx context.Context, query url.Values, after uint64, f func(what string, e events.Event) error) error {
	q := url.Values{}
	for name, values := range query {
		if strings.Join(values, "") != "" && name != "limit" && name != "before" {
			q[name] = values
		}
	}
	if after > 0 {
		q.Set("after", strconv.FormatUint(after, 10))
	}
	return c.do(ctx, http.MethodGet, "/debug/events?"+q.Encode(), eventStream, func(body io.Reader) error {
		lines := bufio.NewScanner(body)
		lines.Buffer(nil, maxStreamLine)
		what := ""
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), ":")
			value = strings.TrimPrefix(value, " ")
			switch name {
			case "event":
				what = value
			case "data":
				var e events.Event
				if err := json.Unmarshal([]byte(value), &e); err != nil {
					return fmt.Errorf("is this a relay's admin address? %w", err)
				}
				if err := f(what, e); err != nil {
					return err
				}
			}
		}
		return cmp.Or(lines.Err(), io.ErrUnexpectedEOF)
	})
}
