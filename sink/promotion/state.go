package promotion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// These are the phases of a promotion. Each is kept in the ConfigMap before its work begins.
const (
	Waiting  = "waiting"  // for the writers of the sink to end
	Removing = "removing" // labels, annotations and managers; the lists are complete
	Done     = "promoted"
	Adopting = "adopting" // the way back
)

// State is what is known of a promotion. It is kept in a ConfigMap.
type State struct {
	Phase, By, Reason string
	Since             time.Time // of the first phase, or of Adopting
	Objects           int       // that the lists name
	Kinds             []mirror.Kind
}

// api are the requests to an API server, of *apiserver.Conn.
type api interface {
	Read(ctx context.Context, path, accept string, to any) error
	Write(ctx context.Context, w apiserver.Write, to any) error
}

// configMap is a ConfigMap.
type configMap struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   metadata          `json:"metadata"`
	Data       map[string]string `json:"data,omitempty"`
	BinaryData map[string][]byte `json:"binaryData,omitempty"`
}

// metadata are the fields of an object's metadata that count.
type metadata struct {
	Namespace       string            `json:"namespace,omitempty"`
	Name            string            `json:"name"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	ManagedFields   []json.RawMessage `json:"managedFields,omitempty"`
}

// managedBy is the label of all objects that the relay makes.
const managedBy, relayName = "app.kubernetes.io/managed-by", "meshrelay"

func newConfigMap(namespace, name string) *configMap {
	return &configMap{APIVersion: "v1", Kind: "ConfigMap", Metadata: metadata{Namespace: namespace, Name: name, Labels: map[string]string{managedBy: relayName}}}
}

func configMaps(namespace string) string { return "/api/v1/namespaces/" + namespace + "/configmaps" }

// readMap returns a ConfigMap, and nil if the API server knows that it does not exist. An answer 404 of another
// server, such as a proxy, is an error.
func readMap(ctx context.Context, c api, namespace, name string) (*configMap, error) {
	m := &configMap{}
	err := c.Read(ctx, configMaps(namespace)+"/"+name, apiserver.AcceptJSON, m)
	var status *apierrors.StatusError
	if apierrors.IsNotFound(err) && errors.As(err, &status) {
		if d := status.ErrStatus.Details; d != nil && d.Kind == "configmaps" && d.Name == name {
			return nil, nil
		}
	}
	if err == nil && (m.Metadata.Name != name || m.Metadata.Namespace != namespace) {
		err = errors.New("the answer is another object: look whether the server is an API server")
	}
	if err != nil {
		return nil, failed("get", "configmaps", namespace, name, err)
	}
	return m, nil
}

// save writes a ConfigMap unless it has changed since it was read, and reads what the server made of it.
func (m *configMap) save(ctx context.Context, c api) error {
	w := apiserver.Write{Method: http.MethodPut, Path: configMaps(m.Metadata.Namespace) + "/" + m.Metadata.Name, Type: apiserver.TypeJSON}
	verb := "update"
	if m.Metadata.UID == "" {
		w.Method, w.Path, verb = http.MethodPost, configMaps(m.Metadata.Namespace), "create"
	}
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	w.Body = body
	now := &configMap{}
	if err := c.Write(ctx, w, now); err != nil {
		return failed(verb, "configmaps", m.Metadata.Namespace, m.Metadata.Name, err)
	}
	*m = *now
	return nil
}

// remove deletes a ConfigMap unless another one has its name.
func (m *configMap) remove(ctx context.Context, c api) error {
	body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]string{"uid": m.Metadata.UID}})
	if err != nil {
		return err
	}
	err = c.Write(ctx, apiserver.Write{Method: http.MethodDelete, Path: configMaps(m.Metadata.Namespace) + "/" + m.Metadata.Name, Type: apiserver.TypeJSON, Body: body}, nil)
	if apierrors.IsNotFound(err) {
		return nil // a request whose answer was lost has deleted it
	}
	return failed("delete", "configmaps", m.Metadata.Namespace, m.Metadata.Name, err)
}

// state returns what the ConfigMap of a promotion tells.
func (m *configMap) state() State {
	s := State{Phase: text.Shorten(m.Data["phase"], 64), By: text.Shorten(m.Data["by"], 256), Reason: text.Shorten(m.Data["reason"], 1024)}
	s.Since, _ = time.Parse(time.RFC3339, m.Data["since"]) // zero if somebody has changed it
	s.Objects, _ = strconv.Atoi(m.Data["objects"])
	for _, word := range strings.Fields(m.Data["kinds"]) {
		if kind, group, ok := strings.Cut(word, "."); ok {
			s.Kinds = append(s.Kinds, mirror.Kind{Group: group, Kind: kind})
		}
	}
	return s
}

// setState keeps a state in the ConfigMap.
func (m *configMap) setState(s State) {
	kinds := make([]string, len(s.Kinds))
	for i, k := range s.Kinds {
		kinds[i] = k.Kind + "." + k.Group
	}
	m.Data = map[string]string{
		"phase": s.Phase, "by": s.By, "reason": s.Reason, "since": s.Since.UTC().Format(time.RFC3339),
		"objects": strconv.Itoa(s.Objects), "kinds": strings.Join(kinds, " "),
	}
}

// failed returns the error of a request with what to do.
func failed(verb, resource, namespace, name string, err error) error {
	if err == nil {
		return nil
	}
	where, cure := name, ""
	if namespace != "" {
		where = strings.TrimSuffix(namespace+"/"+name, "/")
	}
	if apierrors.IsForbidden(err) {
		scope := " -n " + namespace
		if namespace == "" {
			scope = " -A"
		}
		cure = fmt.Sprintf(": allow the identity of this command to %s %s; check with: kubectl auth can-i %[1]s %[2]s%s", verb, resource, scope)
	}
	return fmt.Errorf("%s %s %s: %w%s", verb, resource, where, err, cure)
}
