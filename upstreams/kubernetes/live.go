package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/federation"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/object"
)

// Status is the section about conditions that the relay writes into the status of the objects of an upstream.
type Status struct {
	Write     bool   `yaml:"write"`
	Condition string `yaml:"condition" default:"meshrelay.io/Distributed"`
}

// liveObject is the present state of an object at its API server.
type liveObject struct {
	Metadata metav1.ObjectMeta
	Status   *struct {
		Conditions []json.RawMessage // those of others may have fields of other types
	}
	path string
	held bool // the intake has accepted its content
}

// live reads an object.
func (s *Source) live(ctx context.Context, key mirror.Key) (*liveObject, error) {
	if !s.runs.Load() {
		return nil, errors.New("its source does not run")
	}
	var of *collection
	for _, c := range s.following(key.Kind) {
		if c.converter != nil && (c.namespace == "" || c.namespace == key.Namespace) {
			of = c
		}
	}
	if of == nil {
		return nil, fmt.Errorf("the kind %s is not followed", key.Kind)
	}
	conn, err := s.cluster.Verify(ctx)
	if err != nil {
		return nil, err
	}
	l := &liveObject{path: of.Path(key.Namespace) + "/" + key.Name}
	var text json.RawMessage
	if err = conn.Read(ctx, l.path, apiserver.AcceptJSON, &text); err == nil {
		err = l.read(of, text)
	}
	if apierrors.IsForbidden(err) {
		err = fmt.Errorf("%w: allow the relay to get %s", err, of.Plural)
	}
	return l, s.client.Explain(err)
}

// read sets the fields of an object from its JSON.
func (l *liveObject) read(of *collection, text []byte) error {
	event := io.MultiReader(strings.NewReader(`{"type":"MODIFIED","object":`), bytes.NewReader(text), strings.NewReader("}"))
	_, decoded, err := object.NewDecoder(io.NopCloser(event)).Decode()
	if err != nil {
		return err
	}
	o, is := decoded.(*object.Object)
	if !is {
		return errors.New("the server has sent no object")
	}
	if of.Kind == federation.WorkloadEntry {
		o.SetHealthy()
	}
	l.held = of.source.feed.Holds(intake.KindScope(of.Kind).Name, o.FullName(), of.converter.digest(o), o.Size())
	return json.Unmarshal(text, l)
}

// Report implements upstreams.Reporter. Several replicas may report: each patch names the version that it is for.
func (s *Source) Report(ctx context.Context, key mirror.Key, c metav1.Condition, await func(context.Context) error) (upstreams.Reported, error) {
	l, err := s.live(ctx, key)
	switch {
	case apierrors.IsNotFound(err):
		return upstreams.Absent, nil
	case err != nil:
		return upstreams.Failed, err
	case !l.held:
		return upstreams.Outdated, nil
	}
	c.Type, c.ObservedGeneration, c.LastTransitionTime = s.section.Status.Condition, l.Metadata.Generation, metav1.Now().Rfc3339Copy()
	var conditions []json.RawMessage
	if l.Status != nil {
		conditions = l.Status.Conditions
	}
	var was metav1.Condition
	at := slices.IndexFunc(conditions, func(text json.RawMessage) bool {
		was = metav1.Condition{}
		_ = json.Unmarshal(text, &was) // istiods write numbers as texts, in all conditions
		return was.Type == c.Type
	})
	if at >= 0 {
		if was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
		// One that is True has arrived, whoever connects since.
		if was == c || was.Status == "True" && was.ObservedGeneration == c.ObservedGeneration {
			return upstreams.Unchanged, nil
		}
	}
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	write := op{"replace", fmt.Sprintf("/status/conditions/%d", at), c}
	switch {
	case l.Status == nil:
		write = op{"add", "/status", map[string]any{"conditions": []metav1.Condition{c}}}
	case conditions == nil:
		write = op{"add", "/status/conditions", []metav1.Condition{c}}
	case at < 0:
		write = op{"add", "/status/conditions/-", c}
	}
	body, err := json.Marshal([]op{{"test", "/metadata/uid", l.Metadata.UID}, {"test", "/metadata/resourceVersion", l.Metadata.ResourceVersion}, write})
	if err == nil {
		err = await(ctx)
	}
	if err != nil {
		return upstreams.Failed, err
	}
	conn, err := s.cluster.Verify(ctx)
	if err == nil {
		err = conn.Write(ctx, apiserver.Write{Method: http.MethodPatch, Path: l.path + "/status", Type: apiserver.TypeJSONPatch, Body: body}, nil)
	}
	switch {
	case err == nil:
		return upstreams.Written, nil
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueRequired):
		return upstreams.Absent, nil // such as a route that no gateway has taken: its status needs parents
	case apierrors.IsConflict(err), apierrors.IsInvalid(err):
		return upstreams.Outdated, nil
	case apierrors.IsForbidden(err):
		err = fmt.Errorf("%w: allow the relay to patch */status, or leave out kubernetes.status", err)
	}
	return upstreams.Failed, err
}
