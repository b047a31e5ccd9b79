package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/upstreams/kubernetes/apiserver"
)

// api are the requests to an API server, of *apiserver.Conn.
type api interface {
	Read(ctx context.Context, path, accept string, to any) error
	Write(ctx context.Context, w apiserver.Write, to any) error
}

// object is a Lease with its place. It keeps what others have written into its metadata.
type object struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		HolderIdentity       string `json:"holderIdentity"`
		LeaseDurationSeconds int    `json:"leaseDurationSeconds,omitempty"`
		AcquireTime          string `json:"acquireTime,omitempty"`
		RenewTime            string `json:"renewTime,omitempty"`
		LeaseTransitions     int    `json:"leaseTransitions"`
	} `json:"spec"`

	namespace, name string
	absent          bool
}

func path(namespace string) string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
}

func (o *object) record() Record {
	return Record{Holder: o.Spec.HolderIdentity, Renewed: o.Spec.RenewTime, Transitions: o.Spec.LeaseTransitions}
}

// Read returns the record of a Lease, and the zero value if it does not exist.
func Read(ctx context.Context, c api, namespace, name string) (Record, error) {
	o, err := read(ctx, c, namespace, name)
	if err != nil {
		return Record{}, err
	}
	return o.record(), nil
}

// read returns a Lease, which may be absent.
func read(ctx context.Context, c api, namespace, name string) (*object, error) {
	o := &object{namespace: namespace, name: name}
	err := c.Read(ctx, path(namespace)+"/"+name, apiserver.AcceptJSON, o)
	if apierrors.IsNotFound(err) {
		o.absent, err = true, nil
		o.APIVersion, o.Kind, o.Metadata = "coordination.k8s.io/v1", "Lease", map[string]any{"name": name, "namespace": namespace}
	}
	if err != nil {
		return nil, o.failed("get", err)
	}
	return o, nil
}

// write writes the Lease with a holder, which is empty for a release. It fails if the Lease has changed since it was
// read.
func (o *object) write(ctx context.Context, c api, holder string, takes bool) error {
	now := time.Now().UTC().Format(metav1.RFC3339Micro)
	o.Spec.HolderIdentity, o.Spec.RenewTime = holder, now
	o.Spec.LeaseDurationSeconds = int(Duration / time.Second)
	if takes {
		o.Spec.AcquireTime = now
		o.Spec.LeaseTransitions++
	}
	w := apiserver.Write{Method: http.MethodPut, Path: path(o.namespace) + "/" + o.name, Type: apiserver.TypeJSON}
	verb := "update"
	if o.absent {
		w.Method, w.Path, verb = http.MethodPost, path(o.namespace), "create"
	}
	var err error
	if w.Body, err = json.Marshal(o); err != nil {
		return err
	}
	return o.failed(verb, c.Write(ctx, w, nil))
}

// failed returns the error of a request with what to do.
func (o *object) failed(verb string, err error) error {
	cure := ""
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		cure = fmt.Sprintf(": allow the identity to get, create and update leases.coordination.k8s.io in the namespace %s; check with: kubectl auth can-i %s leases.coordination.k8s.io/%s -n %[1]s", o.namespace, verb, o.name)
	case verb == "create" && apierrors.IsNotFound(err):
		cure = fmt.Sprintf(": create the namespace %s in the cluster, or correct the namespace in the config", o.namespace)
	case apierrors.IsUnauthorized(err):
		cure = ": renew the credentials of the cluster"
	}
	return fmt.Errorf("%s Lease %s/%s: %w%s", verb, o.namespace, o.name, err, cure)
}
