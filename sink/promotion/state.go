package promotion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/internal/text"
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
	Phase   string    `json:"phase"`
	By      string    `json:"by"`
	Reason  string    `json:"reason,omitempty"`
	Since   time.Time `json:"since"`             // of Waiting, or of Adopting
	Objects int       `json:"objects,omitempty"` // that the lists name
}

// configMap is a ConfigMap.
type configMap struct {
	metav1.TypeMeta
	Metadata   metav1.ObjectMeta `json:"metadata"`
	Data       map[string]string `json:"data,omitempty"`
	BinaryData map[string][]byte `json:"binaryData,omitempty"`
}

// managedBy is the label of all objects that the relay makes.
const managedBy, relayName = "app.kubernetes.io/managed-by", "meshrelay"

func newConfigMap(namespace, name string) *configMap {
	m := &configMap{Metadata: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{managedBy: relayName}}}
	m.APIVersion, m.Kind = "v1", "ConfigMap"
	return m
}

func configMaps(namespace string) string { return "/api/v1/namespaces/" + namespace + "/configmaps" }

// readMap returns a ConfigMap, and nil if the API server knows that it does not exist. An answer 404 of another
// server, such as a proxy, is an error.
func readMap(ctx context.Context, c *apiserver.Conn, namespace, name string) (*configMap, error) {
	m := newConfigMap("", "")
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
		return nil, apiserver.Failed("get", "configmaps", namespace, name, err)
	}
	return m, nil
}

// save writes a ConfigMap unless it has changed since it was read, and reads what the server made of it.
func (m *configMap) save(ctx context.Context, c *apiserver.Conn) error {
	return c.Save(ctx, "configmaps", configMaps(m.Metadata.Namespace), m.Metadata, m, m)
}

// remove deletes a ConfigMap unless another one has its name.
func (m *configMap) remove(ctx context.Context, c *apiserver.Conn) error {
	namespace, name := m.Metadata.Namespace, m.Metadata.Name
	body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":%q}}`, m.Metadata.UID)
	err := c.Write(ctx, apiserver.Write{Method: http.MethodDelete, Path: configMaps(namespace) + "/" + name, Type: apiserver.TypeJSON, Body: body}, nil)
	if apierrors.IsNotFound(err) {
		return nil // a request whose answer was lost has deleted it
	}
	return apiserver.Failed("delete", "configmaps", namespace, name, err)
}

// state returns what the ConfigMap of a promotion tells.
func (m *configMap) state() (s State) {
	_ = json.Unmarshal([]byte(m.Data["state"]), &s) // a ConfigMap made by hand forbids to write as well
	s.Phase, s.By, s.Reason = text.Shorten(s.Phase, 64), text.Shorten(s.By, 256), text.Shorten(s.Reason, 1024)
	return s
}
