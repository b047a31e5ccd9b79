package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/services"
)

// readServiceOptions reads what services need in addition to their inputs: the label of the system namespace with the
// network, and the MeshConfig. What can not be read stays as it was. It returns an error if the server has failed before
// it has told them once: hosts of other clusters would be served that are only for their own.
func (s *Source) readServiceOptions(ctx context.Context, conn *apiserver.Conn) error {
	if s.makes == nil {
		return nil
	}
	now := s.serviceOptions
	var namespace metav1.PartialObjectMetadata
	err := conn.Read(ctx, "/api/v1/namespaces/"+s.meshNamespace, apiserver.AcceptMetadata+","+apiserver.AcceptJSON, &namespace)
	if err == nil {
		now.SystemNetwork = namespace.Labels[federation.NetworkLabel]
	}
	text, meshErr := s.meshText(ctx, conn)
	var fields map[string]any
	if meshErr == nil {
		fields, meshErr = meshFields(text)
	}
	if meshErr == nil {
		now.Discovery, now.Local = localOf(fields)
	}
	for _, err := range []error{err, meshErr} {
		switch status := apierrors.APIStatus(nil); {
		case err == nil || apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		case !s.optionsRead && errors.As(err, &status) && (status.Status().Code >= 500 || apierrors.IsTooManyRequests(err)):
			return fmt.Errorf("options of services: %w", err)
		case ctx.Err() == nil:
			s.complaints.Warn(s.log, "options of services can not be read, last ones used", "err", err)
		}
	}
	s.optionsRead = true
	if !reflect.DeepEqual(now, s.serviceOptions) {
		s.serviceOptions = now
		s.ledger.Change(s.makes, func() { s.makes.state.SetOptions(now) })
	}
	return nil
}

// optionsOf returns the options of services, without what is read of the cluster.
func optionsOf(u config.Upstream) services.Options {
	o := services.Options{Domain: u.DomainSuffix, Network: u.Services.Network, HBONE: u.Services.Ambient != "", Exported: u.Services.Only == config.ServicesExported}
	if u.Services.Selector != "" {
		o.Selector, _ = labels.Parse(u.Services.Selector) // the config has been checked
	}
	return o
}

// maxLocalHosts bounds the hosts of a MeshConfig that are used.
const maxLocalHosts = 1000

// localOf returns which services other clusters do not reach by a MeshConfig: the address of the istiod, and the
// hosts in serviceSettings that are clusterLocal, which may begin with "*.".
func localOf(fields map[string]any) (istiod string, hosts []string) {
	text := func(m any, name string) string {
		fields, _ := m.(map[string]any)
		value, _ := fields[name].(string)
		return value
	}
	istiod, _, _ = strings.Cut(text(fields["defaultConfig"], "discoveryAddress"), ":")
	all, _ := fields["serviceSettings"].([]any)
	for _, one := range all {
		setting, _ := one.(map[string]any)
		of, _ := setting["settings"].(map[string]any)
		some, _ := setting["hosts"].([]any)
		for _, h := range some {
			if host, is := h.(string); is && of["clusterLocal"] == true && len(hosts) < maxLocalHosts {
				hosts = append(hosts, host)
			}
		}
	}
	return istiod, hosts
}
