package lease

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/upstreams/kubernetes/apiserver"
)

// object is a Lease. It has no resourceVersion if it does not exist.
type object struct {
	metav1.TypeMeta
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     Record            `json:"spec"`
}

func path(namespace string) string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
}

func read(ctx context.Context, c *apiserver.Conn, namespace, name string) (*object, error) {
	o := &object{}
	err := c.Read(ctx, path(namespace)+"/"+name, apiserver.AcceptJSON, o)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, apiserver.Failed("get", "leases.coordination.k8s.io", namespace, name, err)
	}
	o.APIVersion, o.Kind, o.Metadata.Name, o.Metadata.Namespace = "coordination.k8s.io/v1", "Lease", name, namespace
	return o, nil
}

// write writes the Lease with a holder, which is empty for a release. It fails if the Lease has changed since it was
// read.
func (o *object) write(ctx context.Context, c *apiserver.Conn, holder string, takes bool) error {
	now := time.Now().UTC().Format(metav1.RFC3339Micro)
	o.Spec.Holder, o.Spec.Renewed, o.Spec.Seconds = holder, now, int(Duration/time.Second)
	if takes {
		o.Spec.Acquired = now
		o.Spec.Transitions++
	}
	return o.save(ctx, c, false)
}

func (o *object) save(ctx context.Context, c *apiserver.Conn, dryRun bool) error {
	return c.Save(ctx, "leases.coordination.k8s.io", path(o.Metadata.Namespace), o.Metadata, o, o, dryRun)
}
