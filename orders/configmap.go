package orders

import (
	"cmp"
	"context"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/upstreams/kubernetes/apiserver"
)

// Name is that of the ConfigMap. Rights name it.
const Name = "relay-orders"

// ConfigMap is where the orders are. It need not exist. Any goroutine may call its methods, but for Read.
type ConfigMap struct {
	*apiserver.Client
	Namespace string
}

// Object is what a ConfigMap has. Its Data is not nil.
type Object struct {
	metav1.TypeMeta
	Metadata metav1.ObjectMeta `json:"metadata"`
	Data     map[string]string `json:"data"`
}

func (c *ConfigMap) collection() string {
	return "/api/v1/namespaces/" + url.PathEscape(c.Namespace) + "/configmaps"
}

// Read returns the object, without a version if there is none. It reads the credentials again. One goroutine at a time may
// call it.
func (c *ConfigMap) Read(ctx context.Context) (*Object, error) {
	if err := c.Refresh(ctx); err != nil && c.Current() == nil {
		return nil, err
	}
	o := &Object{}
	err := c.Current().Read(ctx, c.collection()+"/"+Name, apiserver.AcceptJSON, o)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, apiserver.Failed("get", "configmaps", c.Namespace, Name, err)
	}
	o.APIVersion, o.Kind, o.Metadata.Name, o.Metadata.Namespace = "v1", "ConfigMap", Name, c.Namespace
	metav1.SetMetaDataLabel(&o.Metadata, "app.kubernetes.io/managed-by", "meshrelay")
	if o.Data == nil {
		o.Data = map[string]string{}
	}
	return o, nil
}

// Write writes an object with other data than it was read with, and sets its version. It is an error if the object has
// changed since.
func (c *ConfigMap) Write(ctx context.Context, o *Object) error {
	return c.Current().Save(ctx, "configmaps", c.collection(), o.Metadata, o, o, false)
}

// Await waits until the object has another version than it was read with, or ctx ends, which is no error. It may return
// early.
func (c *ConfigMap) Await(ctx context.Context, o *Object) error {
	version := cmp.Or(o.Metadata.ResourceVersion, "0")
	q := url.Values{"watch": {"true"}, "fieldSelector": {"metadata.name=" + Name}, "resourceVersion": {version}}
	resp, err := c.Current().Get(ctx, c.collection(), q, apiserver.AcceptJSON)
	if err == nil {
		defer resp.Body.Close()
		_, err = resp.Body.Read(make([]byte, 1)) // of any event
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}
