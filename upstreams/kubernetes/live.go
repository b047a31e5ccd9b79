package kubernetes

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/federation"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/object"
)

// holds reports whether the intake has accepted the content of an object, given as JSON.
func (c *collection) holds(text []byte) bool {
	_, decoded, err := object.NewDecoder(io.NopCloser(strings.NewReader(`{"type":"MODIFIED","object":` + string(text) + "}"))).Decode()
	o, is := decoded.(*object.Object)
	if err != nil || !is {
		return false
	}
	if c.Kind == federation.WorkloadEntry {
		o.SetHealthy()
	}
	return c.source.feed.Holds(records.KindScope(c.Kind), o.FullName(), c.converter.digest(o), o.Size())
}

// Report implements upstreams.Source.
func (s *Source) Report(ctx context.Context, key mirror.Key, c metav1.Condition) (told bool, err error) {
	if !s.runs.Load() {
		return false, nil
	}
	all := s.following(key.Kind)
	i := slices.IndexFunc(all, func(c *collection) bool {
		return c.converter != nil && (c.namespace == "" || c.namespace == key.Namespace)
	})
	conn, err := s.cluster.Verify(ctx)
	if i < 0 || err != nil {
		return false, err
	}
	path, text := all[i].Path(key.Namespace)+"/"+key.Name, json.RawMessage{}
	if err := conn.Read(ctx, path, apiserver.AcceptJSON, &text); apierrors.IsNotFound(err) {
		return true, nil // there is no object, as for what is made of Services
	} else if err != nil || !all[i].holds(text) {
		return false, apiserver.Failed("get", all[i].Plural, key.Namespace, key.Name, err)
	}
	var live struct {
		Metadata metav1.ObjectMeta
		Status   map[string]json.RawMessage
	}
	var conditions []json.RawMessage // those of others may have fields of other types
	_ = json.Unmarshal(text, &live)  // the server has encoded it
	_ = json.Unmarshal(live.Status["conditions"], &conditions)
	c.Type, c.ObservedGeneration, c.LastTransitionTime = s.section.Status, live.Metadata.Generation, metav1.Now().Rfc3339Copy()
	var was metav1.Condition
	at := slices.IndexFunc(conditions, func(text json.RawMessage) bool {
		was = metav1.Condition{}
		_ = json.Unmarshal(text, &was) // istiods write numbers as texts, in all conditions
		return was.Type == c.Type
	})
	switch {
	case at < 0:
		at, conditions = len(conditions), append(conditions, nil)
	case was.Status == "True" && was.ObservedGeneration == c.ObservedGeneration:
		return true, nil // it has arrived, whoever connects since
	case was.Status == c.Status:
		c.LastTransitionTime = was.LastTransitionTime
	}
	if was == c {
		return true, nil
	}
	encode := func(v any) json.RawMessage { text, _ := json.Marshal(v); return text } // of what was decoded
	conditions[at] = encode(c)
	status := map[string]json.RawMessage{}
	maps.Copy(status, live.Status)
	status["conditions"] = encode(conditions)
	err = conn.Write(ctx, apiserver.Write{Method: http.MethodPatch, Path: path + "/status", Type: apiserver.TypeJSONPatch, Body: encode([]map[string]any{
		{"op": "test", "path": "/metadata/resourceVersion", "value": live.Metadata.ResourceVersion}, {"op": "add", "path": "/status", "value": status},
	})}, nil)
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return true, nil
	case apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueRequired):
		return true, nil // such as a route that no gateway has taken: its status needs parents
	case apierrors.IsConflict(err), apierrors.IsInvalid(err):
		return false, nil // it has changed
	}
	return false, apiserver.Failed("patch", all[i].Plural+"/status", key.Namespace, key.Name, err)
}
