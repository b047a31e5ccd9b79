package orders

import (
	"bufio"
	"cmp"
	"context"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/upstreams/kubernetes/apiserver"
)

// ConfigMap is where the orders are. Any goroutine may call its methods, but for Read.
type ConfigMap struct {
	client     *apiserver.Client
	collection string
	empty      metav1.ObjectMeta
}

// Name is that of the ConfigMap. Rights name it.
const Name = "relay-orders"

// NewConfigMap returns a ConfigMap that need not exist. agent is the user agent of requests.
func NewConfigMap(creds *apiserver.Credentials, agent, namespace string) *ConfigMap {
	return &ConfigMap{
		client: apiserver.NewClient(creds, agent), collection: "/api/v1/namespaces/" + url.PathEscape(namespace) + "/configmaps",
		empty: metav1.ObjectMeta{Name: Name, Namespace: namespace, Labels: map[string]string{"app.kubernetes.io/managed-by": "meshrelay"}},
	}
}

// Object is what a ConfigMap has. Its Data is not nil.
type Object struct {
	metav1.TypeMeta
	Metadata metav1.ObjectMeta `json:"metadata"`
	Data     map[string]string `json:"data"`
}

// Close closes the connections.
func (c *ConfigMap) Close() { c.client.Close() }

// Conn returns the newest connection, nil before the first Read.
func (c *ConfigMap) Conn() *apiserver.Conn { return c.client.Current() }

// Read returns the object, without a version if there is none. It reads the credentials again. One goroutine at a time may
// call it.
func (c *ConfigMap) Read(ctx context.Context) (*Object, error) {
	err := c.client.Refresh(ctx)
	conn := c.Conn()
	if conn == nil {
		return nil, cmp.Or(err, apiserver.ErrNoCredentials)
	}
	o := &Object{}
	if err := conn.Read(ctx, c.collection+"/"+Name, apiserver.AcceptJSON, o); err != nil && !apierrors.IsNotFound(err) {
		return nil, apiserver.Failed("get", "configmaps", c.empty.Namespace, Name, err)
	}
	if o.Metadata.ResourceVersion == "" {
		o.Metadata = c.empty
	}
	if o.APIVersion, o.Kind = "v1", "ConfigMap"; o.Data == nil {
		o.Data = map[string]string{}
	}
	return o, nil
}

// Write writes an object with other data than it was read with, and sets its version. It is an error if the object has
// changed since.
func (c *ConfigMap) Write(ctx context.Context, o *Object) error {
	return c.Conn().Save(ctx, "configmaps", c.collection, o.Metadata, o, o, false)
}

// Await waits until the object has another version than it was read with, or for a time. It may return early.
func (c *ConfigMap) Await(ctx context.Context, o *Object, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	q := url.Values{"watch": {"true"}, "fieldSelector": {"metadata.name=" + Name}, "resourceVersion": {cmp.Or(o.Metadata.ResourceVersion, "0")}}
	resp, err := c.Conn().Get(ctx, c.collection, q, apiserver.AcceptJSON)
	if err == nil {
		defer resp.Body.Close()
		_, err = bufio.NewReader(resp.Body).ReadByte() // of any event
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}
