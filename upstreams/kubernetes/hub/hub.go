// Package hub reads the Secrets of an API server that list clusters.
//
// The package must not know how a kubeconfig is used, or which clusters are followed.
package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/internal/buildinfo"
	"meshrelay/internal/doctor"
	"meshrelay/internal/text"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/object"
)

const (
	pageSize   = 100
	maxObjects = 5_000    // objects without data, and keys of data
	maxBytes   = 64 << 20 // of all objects
	maxPages   = 1_000    // a server may have a page for each few objects
)

// Collection selects objects of a hub.
type Collection struct {
	Path     string
	Selector string // of labels
}

// Hub lists objects of one API server. One goroutine at a time may call its methods.
type Hub struct {
	creds  *apiserver.Credentials
	client *apiserver.Client
	pace   Pace
}

// Pace has the pauses of a Hub.
type Pace struct {
	Poll             time.Duration // between two lists
	Retry, RetryMost time.Duration // bound the pauses after a failure
}

// Usual is the pace of a relay.
var Usual = Pace{Poll: 10 * time.Second, Retry: time.Second, RetryMost: 30 * time.Second}

// New returns a Hub that has requested nothing yet. purpose is part of its User-Agent.
func New(creds *apiserver.Credentials, purpose string, pace Pace) *Hub {
	agent := fmt.Sprintf("meshrelay/%s (%s)", buildinfo.Read("").Version, purpose)
	return &Hub{creds: creds, client: apiserver.NewClient(creds, agent), pace: pace}
}

// Close ends the connections.
func (h *Hub) Close() { h.client.Close() }

// Follow calls f with all objects of a collection, or with an error, after each list, until ctx ends.
func (h *Hub) Follow(ctx context.Context, of Collection, f func([]*object.Object, error)) {
	retry := h.pace.Retry
	for ctx.Err() == nil {
		objects, err := h.List(ctx, of)
		if ctx.Err() != nil {
			return
		}
		f(objects, err)
		pause := h.pace.Poll
		if err == nil {
			retry = h.pace.Retry
		} else {
			pause, retry = retry, min(2*retry, h.pace.RetryMost)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// List returns all objects of a collection.
func (h *Hub) List(ctx context.Context, of Collection) ([]*object.Object, error) {
	if err := h.client.Refresh(ctx); err != nil && !errors.As(err, new(apiserver.Kept)) {
		return nil, err
	}
	return h.pages(ctx, of.Path, of.Selector)
}

// pages returns all objects at a path, page by page.
func (h *Hub) pages(ctx context.Context, path, selector string) (all []*object.Object, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*apiserver.ReadTimeout)
	defer cancel()
	query := url.Values{"limit": {strconv.Itoa(pageSize)}}
	if selector != "" {
		query.Set("labelSelector", selector)
	}
	objects, reading := 0, object.NewBudget(maxBytes/2).Begin(true)
	admit := func(o *object.Object) error { // a server may ignore the limit of a page
		if objects += 1 + bytes.Count(o.Data, []byte{','}); objects > maxObjects || reading.Admit(o) != nil {
			return fmt.Errorf("%s has more than %d objects or keys, or more than %d MiB: select fewer objects", path, maxObjects, maxBytes>>20)
		}
		return nil
	}
	for range maxPages {
		l, err := h.page(ctx, path, query, admit)
		if err != nil {
			return nil, err
		}
		all = append(all, l.Items...)
		if l.Continue == "" {
			return all, nil
		}
		query.Set("continue", l.Continue)
	}
	return nil, fmt.Errorf("%s has more than %d pages: look for a proxy between the relay and the server", path, maxPages)
}

func (h *Hub) page(ctx context.Context, path string, query url.Values, admit func(*object.Object) error) (*object.List, error) {
	resp, err := h.client.Current().Get(ctx, path, query, apiserver.AcceptJSON)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	d := object.NewDecoder(resp.Body)
	d.Admit = admit
	d.Prepare = func(o *object.Object) { o.Spec = nil }
	return d.List()
}

// Probe returns all objects of a collection, and findings about the credentials, the server and the right to
// list. ok reports whether the objects can be listed.
func (h *Hub) Probe(ctx context.Context, of Collection) (objects []*object.Object, found []doctor.Finding, ok bool) {
	if err := h.client.Refresh(ctx); err != nil {
		return nil, []doctor.Finding{doctor.Bad("credentials", h.creds.Place(), "the credentials of the hub can not be used", text.Abbreviate(err.Error()),
			"correct kubeconfig and context, or inCluster; a program of the kubeconfig has to be in allowExec beside it")}, false
	}
	server, what := h.client.Current().Server(), of.name()
	objects, err := h.List(ctx, of)
	switch {
	case err == nil:
		return objects, []doctor.Finding{doctor.Good("permissions", server, "%s can be listed", what)}, true
	case apierrors.IsForbidden(err):
		found = append(found, doctor.Bad("permissions", server, "the identity may not list "+what, text.Abbreviate(apiserver.Cause(err)),
			"grant it list for them: deploy/kubernetes/rbac-hub.yaml has the Role"))
	case apierrors.IsNotFound(err):
		found = append(found, doctor.Bad("kubernetes", server, "the server knows no "+what, text.Abbreviate(apiserver.Cause(err)),
			"install the definition of that kind, or look whether this is the right cluster"))
	default:
		found = append(found, apiserver.Finding(server, err))
	}
	return nil, found, false
}

// name returns a description of the objects, for example "secrets in istio-system".
func (of Collection) name() string {
	_, path, _ := strings.Cut(of.Path, "/namespaces/")
	namespace, plural, _ := strings.Cut(path, "/")
	return plural + " in " + namespace
}
