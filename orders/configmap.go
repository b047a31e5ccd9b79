package orders

import (
	"bufio"
	"cmp"
	"context"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/upstreams/kubernetes/apiserver"
)

// ConfigMap is where the orders are. Any goroutine may call its methods.
type ConfigMap struct {
	client     *apiserver.Client
	collection string
	empty      metav1.ObjectMeta
	refreshing sync.Mutex // is held while credentials are read
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

// Orders returns the orders of an object.
func (o *Object) Orders() (State, error) { return Decode(o.Data[ordersKey]) }

// Set sets the orders of an object.
func (o *Object) Set(s State) (err error) {
	o.Data[ordersKey], err = s.Encode()
	return err
}

// Close closes the connections.
func (c *ConfigMap) Close() { c.client.Close() }

// Connect returns a connection with the present credentials.
func (c *ConfigMap) Connect(ctx context.Context) (*apiserver.Conn, error) {
	c.refreshing.Lock()
	defer c.refreshing.Unlock()
	err := c.client.Refresh(ctx)
	if conn := c.client.Current(); conn != nil {
		return conn, nil
	}
	return nil, cmp.Or(err, apiserver.ErrNoCredentials)
}

// Read returns the object, without a version if there is none.
func (c *ConfigMap) Read(ctx context.Context) (*Object, error) {
	ctx, cancel := context.WithTimeout(ctx, apiserver.WriteTimeout)
	defer cancel()
	conn, err := c.Connect(ctx)
	if err != nil {
		return nil, err
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
	conn, err := c.Connect(ctx)
	if err != nil {
		return err
	}
	return conn.Save(ctx, "configmaps", c.collection, o.Metadata, o, o, false)
}

// Await waits until the object has another version than it was read with, or for a time. It may return early.
func (c *ConfigMap) Await(ctx context.Context, o *Object, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	conn, err := c.Connect(ctx)
	if err != nil {
		return err
	}
	q := url.Values{"watch": {"true"}, "fieldSelector": {"metadata.name=" + Name}, "resourceVersion": {cmp.Or(o.Metadata.ResourceVersion, "0")}}
	resp, err := conn.Get(ctx, c.collection, q, apiserver.AcceptJSON)
	if err == nil {
		defer resp.Body.Close()
		_, err = bufio.NewReader(resp.Body).ReadByte() // of any event
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}
