package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"io"
	"text/template"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"meshrelay/upstreams/kubernetes/apiserver"
)

//go:embed cluster.yaml
var clusterManifests string

// clusterInit are the flags from which init makes the manifests for a cluster.
type clusterInit struct {
	Context, Name, Namespace, Server string
	Secret                           bool
	Data                             struct { // not flags: of the Secret that the cluster has filled in
		Token []byte
		CA    string `json:"ca.crt"` // in base64
	}
}

// write writes what the cluster of a context needs, or a Secret with a kubeconfig for it. An empty path means the
// kubeconfig of kubectl.
func (c *clusterInit) write(ctx context.Context, path string, w io.Writer) error {
	part := "rights"
	conn, server, err := apiserver.OfUser(path, c.Context)
	switch {
	case err != nil:
		return fmt.Errorf("--cluster %s: %w", c.Context, err)
	case len(validation.IsDNS1123Subdomain(c.Name)) > 0 || len(validation.IsDNS1123Label(c.Namespace)) > 0:
		return fmt.Errorf("a Secret relay-cluster-%s in namespace %q is not possible: use other --name and --namespace", c.Name, c.Namespace)
	case c.Secret:
		part, c.Server = "secret", cmp.Or(c.Server, server)
		err := conn.Read(ctx, "/api/v1/namespaces/"+c.Namespace+"/secrets/relay-reader-token", apiserver.AcceptJSON, c)
		if apierrors.IsNotFound(err) || err == nil && (len(c.Data.Token) == 0 || c.Data.CA == "") {
			return fmt.Errorf("cluster %s has no token for a relay yet: relay init --cluster %[1]s | kubectl --context %[1]s apply -f -", c.Context)
		} else if err != nil {
			return apiserver.Failed("get", "secrets", c.Namespace, "relay-reader-token", err)
		}
	}
	return template.Must(template.New("").Parse(clusterManifests)).ExecuteTemplate(w, part, c)
}
