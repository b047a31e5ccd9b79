package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/internal/buildinfo"
)

const (
	hubPage       = 100
	maxHubObjects = 5_000
	maxHubBytes   = 64 << 20 // of all objects
)

// Part is what is read of the objects of a Collection.
type Part int

// The parts of an object.
const (
	Data   Part = iota // of a Secret
	Status             // of a custom resource
)

// Collection is some objects of a hub.
type Collection struct {
	// Paths are those of the collection in each version of its API, the preferred one first.
	Paths    []string
	Selector string // of labels
	Part     Part
}

// HubObject is an object of a hub.
type HubObject struct {
	Namespace, Name string
	Annotations     map[string]string
	Part            json.RawMessage // nil without one
	Err             error           // why the metadata can not be used
}

// Hub reads the few objects of an API server that tell of clusters. It lists them every ten seconds. Its methods may be called by one goroutine at a time.
type Hub struct {
	client *client
	pace   HubPace
}

// HubPace is how often a Hub asks.
type HubPace struct {
	// Poll is the pause between two lists. Retry and RetryMost bound the pauses after a failure.
	Poll, Retry, RetryMost time.Duration
}

// UsualHubPace is the pace of a relay.
var UsualHubPace = HubPace{Poll: 10 * time.Second, Retry: time.Second, RetryMost: 30 * time.Second}

// NewHub returns a Hub that has asked nothing yet. purpose is for the log of the server.
func NewHub(section *Config, purpose string, pace HubPace) *Hub {
	return &Hub{client: &client{section: section, agent: fmt.Sprintf("meshrelay/%s (%s)", buildinfo.Read("").Version, purpose)}, pace: pace}
}

// Close ends the connections.
func (h *Hub) Close() { h.client.close() }

// Follow calls tell with all objects of a collection, or with why they can not be read, now and after
// each poll, until ctx ends.
func (h *Hub) Follow(ctx context.Context, of Collection, tell func([]HubObject, error)) {
	pause := h.pace.Retry
	for ctx.Err() == nil {
		objects, err := h.List(ctx, of)
		if ctx.Err() != nil {
			return
		}
		tell(objects, err)
		next := h.pace.Poll
		if err == nil {
			pause = h.pace.Retry
		} else {
			next, pause = pause, min(2*pause, h.pace.RetryMost)
		}
		select {
		case <-ctx.Done():
		case <-time.After(next):
		}
	}
}

// List returns all objects of a collection.
func (h *Hub) List(ctx context.Context, of Collection) (objects []HubObject, err error) {
	if err := h.client.refresh(ctx); err != nil {
		return nil, err
	}
	for _, path := range of.Paths {
		if objects, err = h.pages(ctx, path, of); !apierrors.IsNotFound(err) {
			break
		}
	}
	return objects, err
}

// hubRoom bounds what is kept of the pages of a list while they are read: a server need not heed how
// many objects it is asked for.
type hubRoom struct {
	path           string
	objects, bytes int
}

// take returns an error when an object is one too many.
func (r *hubRoom) take(o *object) error {
	r.objects++
	if r.bytes += o.size(); r.objects > maxHubObjects || r.bytes > maxHubBytes {
		return fmt.Errorf("%s has more than %d objects or %d MiB: select fewer", r.path, maxHubObjects, maxHubBytes>>20)
	}
	return nil
}

func (h *Hub) pages(ctx context.Context, path string, of Collection) (all []HubObject, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*readTimeout)
	defer cancel()
	query := url.Values{"limit": {strconv.Itoa(hubPage)}}
	room := &hubRoom{path: path}
	for {
		l, err := h.page(ctx, path, query, of, room)
		if err != nil {
			return nil, err
		}
		for _, o := range l.Items {
			all = append(all, HubObject{o.namespace, o.name, o.annotations, o.spec, o.err})
		}
		if l.Continue == "" {
			return all, nil
		}
		query.Set("continue", l.Continue)
	}
}

func (h *Hub) page(ctx context.Context, path string, query url.Values, of Collection, room *hubRoom) (*objects, error) {
	if of.Selector != "" {
		query.Set("labelSelector", of.Selector)
	}
	resp, err := h.client.current().get(ctx, path, query, acceptJSON)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	d := newDecoder(resp.Body, false)
	d.part, d.room = &of.Part, room
	return d.list()
}
