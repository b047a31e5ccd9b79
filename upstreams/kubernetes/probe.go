package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/internal/text"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/discovery"
)

const (
	// maxProbes bounds the requests of a probe at the same time.
	maxProbes = 8
	// maxDenied bounds the kinds that a finding names.
	maxDenied = 5
)

// probe returns the checks of the API server: credentials, and the right to list and watch.
func probe(u config.Upstream, env upstreams.Env) []doctor.Check {
	return []doctor.Check{{Name: "kubernetes", Upstream: u.Name, Run: func(ctx context.Context) []doctor.Finding {
		s := New(u, env)
		defer s.client.Close()
		return s.probe(ctx, time.Now())
	}}}
}

func (s *Source) probe(ctx context.Context, now time.Time) []doctor.Finding {
	if err := s.client.Refresh(ctx); err != nil {
		return []doctor.Finding{doctor.Bad("credentials", s.section.Cluster.Kubeconfig, "the credentials can not be used", err.Error(), "correct kubeconfig and context, or inCluster")}
	}
	c := s.client.Current()
	found, err := s.contacted(ctx, c, now)
	if err != nil {
		finding := apiserver.Finding(c.Server(), err)
		if end, over := c.Expired(now); over && apierrors.IsUnauthorized(err) {
			finding.Why = fmt.Sprintf("the client certificate has expired at %s", end.UTC().Format(time.RFC3339))
		}
		return append(found, finding)
	}
	all, err := discovery.Fetch(ctx, c, s.sought)
	if err != nil {
		return append(found, apiserver.Finding(c.Server(), err))
	}
	return append(found, s.permissions(ctx, c, all)...)
}

// contacted requests the version of the server, and compares its clock. Any answer except 401 is good.
func (s *Source) contacted(ctx context.Context, c *apiserver.Conn, now time.Time) (found []doctor.Finding, err error) {
	resp, err := c.Get(ctx, "/version", nil, apiserver.AcceptJSON)
	if err == nil {
		defer resp.Body.Close()
		if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			found = doctor.Skew(c.Server(), at, now)
		}
	}
	if answered := apierrors.APIStatus(nil); err != nil && (apierrors.IsUnauthorized(err) || !errors.As(err, &answered)) {
		return found, err
	}
	return append(found, doctor.Good("kubernetes", c.Server(), "the API server answers, and accepts the credentials")), nil
}

// permissions checks the right to list and watch each kind, with requests for one object.
func (s *Source) permissions(ctx context.Context, c *apiserver.Conn, all *discovery.Answer) (found []doctor.Finding) {
	var mu sync.Mutex
	var denied, failed []string
	may, required := 0, false
	var group errgroup.Group
	group.SetLimit(maxProbes)
	for _, one := range s.followed(all) {
		for _, namespace := range s.namespacesOf(one) {
			group.Go(func() error {
				err := mayFollow(ctx, c, one.Path(namespace))
				mu.Lock()
				defer mu.Unlock()
				name := strings.TrimSuffix(one.Plural+"."+one.Kind.Group, ".")
				if namespace != "" {
					name += " in " + namespace
				}
				switch {
				case err == nil:
					may++
				case apierrors.IsForbidden(err):
					denied = append(denied, name)
					required = required || s.needed(one.Kind)
				default:
					failed = append(failed, name+": "+text.Abbreviate(apiserver.Cause(err)))
				}
				return nil
			})
		}
	}
	_ = group.Wait() // its functions return nil
	if len(denied) > 0 {
		f := doctor.Doubt("permissions", c.Server(), fmt.Sprintf("the identity may not list and watch %s", text.Some(slices.Sorted(slices.Values(denied)), maxDenied)), "the other kinds are mirrored; these are denied",
			"grant list and watch for them (docs/kubernetes.md has a ClusterRole), or leave them out with import.kinds; without pods, set services.pods: false")
		if required || may == 0 {
			f.Level, f.Why = doctor.Failed, "clients wait for kinds that import.kinds names, and for what ingress, services and discoverySelectors need"
		}
		found = append(found, f)
	}
	if len(failed) > 0 {
		found = append(found, doctor.Bad("permissions", c.Server(), "some kinds could not be asked for", text.Some(slices.Sorted(slices.Values(failed)), maxDenied), "look at the log of the API server"))
	}
	if may > 0 {
		found = append(found, doctor.Good("permissions", c.Server(), "%d kinds can be listed and watched", may))
	}
	if s.readsInput(exportKind) && len(all.Kinds[exportKind]) == 0 {
		found = append(found, doctor.Doubt("services", c.Server(), noExports, "no Service has a ServiceExport there, and services.only is exported", "install the CRD of the MCS API, or leave services.only out"))
	}
	if s.section.Ingress.Mode == modeMesh {
		if _, err := s.meshOptions(ctx, c); err != nil {
			found = append(found, doctor.Bad("ingress", c.Server(), "the MeshConfig can not be read", text.Abbreviate(apiserver.Cause(err)), "let the relay get that ConfigMap, correct ingress.meshConfig, or set ingress.mode to what the mesh has"))
		}
	}
	if len(found) == 0 {
		found = append(found, doctor.Doubt("permissions", c.Server(), "the server has no kind of Istio or the Gateway API", "their definitions are not installed there", "install the CRDs of Istio, or look whether this is the right cluster"))
	}
	return found
}

// followed returns the resources that the source lists and watches on a server that serves them all.
func (s *Source) followed(on *discovery.Answer) (all []discovery.Resource) {
	for _, kind := range s.sought {
		if best, is := on.Best(kind); is && s.wants(kind) {
			all = append(all, best)
		}
	}
	all = append(all, s.inputs()...)
	if s.selection != nil && !s.readsInput(namespaceResource.Kind) {
		all = append(all, namespaceResource)
	}
	return all
}

// mayFollow lists one object of a kind, and starts a watch that ends at once.
func mayFollow(ctx context.Context, c *apiserver.Conn, path string) error {
	for _, query := range []url.Values{{"limit": {"1"}}, {"watch": {"true"}, "timeoutSeconds": {"1"}}} {
		resp, err := c.Get(ctx, path, query, apiserver.AcceptMetadataList)
		if err != nil {
			return err
		}
		resp.Body.Close()
	}
	return nil
}
