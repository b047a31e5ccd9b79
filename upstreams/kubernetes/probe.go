package kubernetes

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/internal/text"
	"meshrelay/upstreams"
)

const (
	// maxProbes bounds the requests of a probe at the same time.
	maxProbes = 8
	// maxDenied bounds the kinds that a finding names.
	maxDenied = 5
)

// probe returns a check of the API server: who we are for it, and what we may list and watch there.
func probe(u config.Upstream, env upstreams.Env) []doctor.Check {
	return []doctor.Check{{Name: "kubernetes", Upstream: u.Name, Run: func(ctx context.Context) []doctor.Finding {
		s := New(u, env)
		defer s.client.close()
		return s.probe(ctx, time.Now())
	}}}
}

func (s *Source) probe(ctx context.Context, now time.Time) []doctor.Finding {
	if err := s.client.refresh(ctx); err != nil {
		return []doctor.Finding{doctor.Bad("credentials", s.section.Kubeconfig, "the credentials can not be used", err.Error(), "correct kubeconfig and context, or inCluster")}
	}
	c := s.client.current()
	found, err := s.contacted(ctx, c, now)
	if err != nil {
		finding := refused(c.server(), err)
		if end, over := c.expired(now); over && apierrors.IsUnauthorized(err) {
			finding.Why = fmt.Sprintf("the client certificate has expired at %s", end.UTC().Format(time.RFC3339))
		}
		return append(found, finding)
	}
	all, err := discover(ctx, c, s.kinds)
	if err != nil {
		return append(found, refused(c.server(), err))
	}
	return append(found, s.permissions(ctx, c, all)...)
}

// contacted asks for the version of the server, whose answer tells its time. Any answer but one about
// the credentials will do.
func (s *Source) contacted(ctx context.Context, c *connection, now time.Time) (found []doctor.Finding, err error) {
	resp, err := c.get(ctx, "/version", nil, acceptJSON)
	if err == nil {
		defer resp.Body.Close()
		if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			found = doctor.Skew(c.server(), at, now)
		}
	}
	if answered := apierrors.APIStatus(nil); err != nil && (apierrors.IsUnauthorized(err) || !errors.As(err, &answered)) {
		return found, err
	}
	return append(found, doctor.Good("kubernetes", c.server(), "the API server answers, and accepts the credentials")), nil
}

// refused returns the finding of a request that came to nothing.
func refused(server string, err error) doctor.Finding {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	bad := func(check, what, fix string) doctor.Finding {
		return doctor.Bad(check, server, what, text.Abbreviate(cause(err)), fix)
	}
	switch {
	case apierrors.IsUnauthorized(err):
		return bad("identity", "the API server does not accept the credentials", "renew the token or certificate of the kubeconfig, or the service account of the pod")
	case apierrors.IsForbidden(err):
		return bad("identity", "the API server knows who we are, and refuses to tell what it serves", "give the identity the ClusterRole system:discovery")
	case errors.As(err, &unknown):
		return bad("tls", "the certificate of the API server is signed by a root that is not trusted", "correct certificate-authority of the cluster in the kubeconfig")
	case errors.As(err, &name):
		return bad("tls", "the certificate of the API server is for another name", "set tls-server-name of the cluster in the kubeconfig, or correct its server")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return bad("clock", "the certificate of the API server is not valid now", "look at the clock of this host, and renew the certificate of the server")
	case errors.Is(err, syscall.ECONNREFUSED):
		return bad("tcp", "connection refused", "check the port of the server in the kubeconfig, and that the server runs")
	case errors.Is(err, context.DeadlineExceeded):
		return bad("tcp", "no answer in time", "look at firewalls, network policies and routes between this host and the server")
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return bad("tls", "the server speaks plaintext there", "check the port of the server in the kubeconfig")
	}
	return bad("kubernetes", "the API server can not be asked", "look at the server of the kubeconfig")
}

// cause returns an error without the URL that was asked.
func cause(err error) string {
	var asked *url.Error
	if errors.As(err, &asked) {
		err = asked.Err
	}
	return err.Error()
}

// permissions checks that each kind can be listed and watched, with requests that bring next to
// nothing.
func (s *Source) permissions(ctx context.Context, c *connection, all *answer) (found []doctor.Finding) {
	namespaces := s.section.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	var mu sync.Mutex
	var denied, failed []string
	may, required := 0, false
	var group errgroup.Group
	group.SetLimit(maxProbes)
	for _, one := range s.followed(all) {
		in := namespaces
		if !one.namespaced {
			in = []string{""}
		}
		for _, namespace := range in {
			group.Go(func() error {
				err := c.mayFollow(ctx, one.path(namespace))
				mu.Lock()
				defer mu.Unlock()
				name := strings.TrimSuffix(one.plural+"."+one.kind.Group, ".")
				if namespace != "" {
					name += " in " + namespace
				}
				switch {
				case err == nil:
					may++
				case apierrors.IsForbidden(err):
					denied = append(denied, name)
					required = required || s.needed(one.kind)
				default:
					failed = append(failed, name+": "+text.Abbreviate(cause(err)))
				}
				return nil
			})
		}
	}
	_ = group.Wait() // its functions return nil
	if len(denied) > 0 {
		f := doctor.Doubt("permissions", c.server(), fmt.Sprintf("the identity may not list and watch %s", some(denied)), "the other kinds are mirrored; these are denied",
			"grant list and watch for them (deploy/kubernetes has a ClusterRole), or leave them out with import.kinds")
		if required || may == 0 {
			f.Level, f.Why = doctor.Failed, "clients wait for kinds that import.kinds names, and for what ingress and discoverySelectors need"
		}
		found = append(found, f)
	}
	if len(failed) > 0 {
		found = append(found, doctor.Bad("permissions", c.server(), "some kinds could not be asked for", some(failed), "look at the log of the API server"))
	}
	if may > 0 {
		found = append(found, doctor.Good("permissions", c.server(), "%d kinds can be listed and watched", may))
	}
	if s.section.Ingress.Mode == modeMesh {
		if _, err := s.meshOptions(ctx, c); err != nil {
			found = append(found, doctor.Bad("ingress", c.server(), "the MeshConfig can not be read", text.Abbreviate(cause(err)), "let the relay get that ConfigMap, correct ingress.meshConfig, or set ingress.mode to what the mesh has"))
		}
	}
	if len(found) == 0 {
		found = append(found, doctor.Doubt("permissions", c.server(), "the server has no kind of Istio or the Gateway API", "their definitions are not installed there", "install the CRDs of Istio, or look whether this is the right cluster"))
	}
	return found
}

// followed returns what the source lists and watches on a server that serves all this.
func (s *Source) followed(on *answer) (all []served) {
	for _, kind := range s.kinds {
		if best, is := on.best(kind); is && s.wants(kind) {
			all = append(all, best)
		}
	}
	if s.ingressOptions != nil {
		all = append(all, servedInputs...)
	}
	if s.choice != nil {
		all = append(all, servedNamespaces)
	}
	return all
}

// mayFollow lists one object of a collection, and begins a watch that ends at once.
func (c *connection) mayFollow(ctx context.Context, path string) error {
	for _, query := range []url.Values{{"limit": {"1"}}, {"watch": {"true"}, "timeoutSeconds": {"1"}}} {
		resp, err := c.get(ctx, path, query, acceptMetadataList)
		if err != nil {
			return err
		}
		resp.Body.Close()
	}
	return nil
}

// some returns the first of some texts, and how many more there are.
func some(all []string) string {
	slices.Sort(all)
	names := strings.Join(all[:min(len(all), maxDenied)], ", ")
	if more := len(all) - maxDenied; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return names
}
