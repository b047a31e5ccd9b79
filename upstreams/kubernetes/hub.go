package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"meshrelay/internal/buildinfo"
)

const (
	hubPage       = 100
	maxHubObjects = 5_000
	maxHubBytes   = 64 << 20 // of all objects
	hubOvertime   = time.Minute
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

// Hub reads the few objects of an API server that tell of clusters. It lists all of them after each
// change, so that no event counts by itself. Its methods may be called by one goroutine at a time.
type Hub struct {
	client *client
	pace   HubPace
	path   string // that the server has last answered for
}

// HubPace is how often a Hub asks.
type HubPace struct {
	// Settle is the pause between a change and the list. Relist is the time after which everything
	// is listed without one. Retry and RetryMost bound the pauses after a failure.
	Settle, Relist, Retry, RetryMost time.Duration
}

// UsualHubPace is the pace of a relay.
var UsualHubPace = HubPace{Settle: time.Second, Relist: 5 * time.Minute, Retry: time.Second, RetryMost: 30 * time.Second}

// NewHub returns a Hub that has asked nothing yet. purpose is for the log of the server.
func NewHub(section *Config, purpose string, pace HubPace) *Hub {
	return &Hub{client: &client{section: section, agent: fmt.Sprintf("meshrelay/%s (%s)", buildinfo.Read("").Version, purpose)}, pace: pace}
}

// Close ends the connections.
func (h *Hub) Close() { h.client.close() }

// Follow calls tell with all objects of a collection, or with why they can not be read, now and after
// each change, until ctx ends.
func (h *Hub) Follow(ctx context.Context, of Collection, tell func([]HubObject, error)) {
	pause := h.pace.Retry
	for ctx.Err() == nil {
		objects, version, err := h.list(ctx, of)
		if ctx.Err() != nil {
			return
		}
		tell(objects, err)
		next := h.pace.Settle
		if err == nil {
			pause = h.pace.Retry
			err = h.await(ctx, of, version)
		}
		if err != nil {
			next, pause = pause, min(2*pause, h.pace.RetryMost)
		}
		select {
		case <-ctx.Done():
		case <-time.After(next):
		}
	}
}

// List returns all objects of a collection.
func (h *Hub) List(ctx context.Context, of Collection) ([]HubObject, error) {
	objects, _, err := h.list(ctx, of)
	return objects, err
}

// list returns all objects of a collection, with the version of the list.
func (h *Hub) list(ctx context.Context, of Collection) (objects []HubObject, version string, err error) {
	if err := h.client.refresh(ctx); err != nil {
		return nil, "", err
	}
	for _, path := range of.Paths {
		h.path = path
		objects, version, err = h.pages(ctx, path, of)
		if !apierrors.IsNotFound(err) {
			return objects, version, err
		}
	}
	return objects, version, err
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

func (h *Hub) pages(ctx context.Context, path string, of Collection) (all []HubObject, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*readTimeout)
	defer cancel()
	query := url.Values{"limit": {strconv.Itoa(hubPage)}}
	room := &hubRoom{path: path}
	for {
		l, err := h.page(ctx, path, query, of, room)
		if err != nil {
			return nil, "", err
		}
		for _, o := range l.Items {
			all = append(all, HubObject{o.namespace, o.name, o.annotations, o.spec, o.err})
		}
		if l.Continue == "" {
			return all, l.ResourceVersion, nil
		}
		query.Set("continue", l.Continue)
	}
}

func (h *Hub) page(ctx context.Context, path string, query url.Values, of Collection, room *hubRoom) (*objects, error) {
	d, err := h.open(ctx, path, query, of)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	d.room = room
	return d.list()
}

func (h *Hub) open(ctx context.Context, path string, query url.Values, of Collection) (*decoder, error) {
	if of.Selector != "" {
		query.Set("labelSelector", of.Selector)
	}
	resp, err := h.client.current().get(ctx, path, query, acceptJSON) //nolint:bodyclose // the decoder closes it
	if err != nil {
		return nil, err
	}
	d := newDecoder(resp.Body, false)
	d.part = &of.Part
	return d, nil
}

// await returns after a change that came after a version, or when it is time to look anyway. After
// an error nobody knows.
func (h *Hub) await(ctx context.Context, of Collection, version string) error {
	seconds := max(1, int(h.pace.Relist/time.Second))
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+hubOvertime)
	defer cancel()
	d, err := h.open(ctx, h.path, url.Values{
		"watch": {"true"}, "resourceVersion": {version}, "allowWatchBookmarks": {"true"}, "timeoutSeconds": {strconv.Itoa(seconds)},
	}, of)
	if err != nil {
		return err
	}
	defer d.Close()
	began := time.Now()
	for {
		event, o, err := d.Decode()
		switch {
		case err != nil && time.Since(began) >= h.pace.Settle:
			return nil // watches end
		case err != nil:
			return err
		case event == watch.Error:
			return apierrors.FromObject(o)
		case event != watch.Bookmark:
			return nil
		}
	}
}
