// Package ingress compares what the relay makes of Ingresses with what istiod's own code makes of
// them, in this process.
package ingress

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"istio.io/istio/pilot/pkg/config/kube/ingress"
	kubecontroller "istio.io/istio/pilot/pkg/serviceregistry/kube/controller"
	"istio.io/istio/pkg/config"
	"istio.io/istio/pkg/config/mesh"
	"istio.io/istio/pkg/config/schema/gvk"
	"istio.io/istio/pkg/kube"
	"istio.io/istio/pkg/kube/kclient"

	"meshrelay/e2e/internal/converter"
)

// set is what an API server has.
type set struct {
	ingresses []*networkingv1.Ingress
	classes   []*networkingv1.IngressClass
	services  []*corev1.Service
}

// objects returns all objects, with their kind.
func (s *set) objects() (all []runtime.Object) {
	for _, o := range s.ingresses {
		o.Kind = "Ingress"
		all = append(all, o)
	}
	for _, o := range s.classes {
		o.Kind = "IngressClass"
		all = append(all, o)
	}
	for _, o := range s.services {
		o.Kind = "Service"
		all = append(all, o)
	}
	return all
}

// outputs are Gateways by namespace and name, and VirtualServices by host: an istiod may make two of
// one name.
type outputs struct {
	gateways map[string]*networking.Gateway
	hosts    map[string]*virtualService
}

type virtualService struct {
	name string // with its namespace
	body *networking.VirtualService
}

const ingressAnnotation = "internal.istio.io/route-semantics"

func (o *outputs) addService(namespace, name string, annotations map[string]string, body *networking.VirtualService) error {
	if len(annotations) != 1 || annotations[ingressAnnotation] != "ingress" {
		return fmt.Errorf("VirtualService %s/%s has annotations %v", namespace, name, annotations)
	}
	if len(body.Hosts) != 1 || o.hosts[body.Hosts[0]] != nil {
		return fmt.Errorf("VirtualService %s/%s has hosts %v, or another one has them", namespace, name, body.Hosts)
	}
	o.hosts[body.Hosts[0]] = &virtualService{namespace + "/" + name, body}
	return nil
}

// relays returns the outputs of the relay.
func relays(t *testing.T, c *converter.Converter, o converter.Options, s *set) *outputs {
	t.Helper()
	list, err := converter.Convert(c, o, s.objects())
	if err != nil {
		t.Fatal(err)
	}
	out := &outputs{map[string]*networking.Gateway{}, map[string]*virtualService{}}
	for _, r := range list {
		if r.Gateway == nil {
			if err := out.addService(r.Namespace, r.Name, r.Annotations, r.VirtualService); err != nil {
				t.Error(err)
			}
			continue
		}
		name := r.Namespace + "/" + r.Name
		if out.gateways[name] != nil || len(r.Annotations) > 0 {
			t.Errorf("Gateway %s is there twice, or has annotations %v", name, r.Annotations)
		}
		out.gateways[name] = r.Gateway
	}
	return out
}

func meshOf(o converter.Options) *meshconfig.MeshConfig {
	m := mesh.DefaultMeshConfig()
	m.IngressSelector = o.Selector
	m.IngressClass = cmp.Or(o.Class, m.IngressClass)
	m.IngressService = cmp.Or(o.Service, m.IngressService)
	m.IngressControllerMode = map[converter.Mode]meshconfig.MeshConfig_IngressControllerMode{
		converter.Default: meshconfig.MeshConfig_DEFAULT, converter.Strict: meshconfig.MeshConfig_STRICT,
	}[o.Mode]
	return m
}

// istiods returns the outputs of istiod: of the ingress controller of this version when o.Older is
// true. Otherwise, of its functions for single Ingresses, called in the order of newer versions.
func istiods(t *testing.T, o converter.Options, s *set) *outputs {
	t.Helper()
	client := kube.NewFakeClient(s.objects()...)
	defer client.Shutdown()
	stop := make(chan struct{})
	defer close(stop)
	c := ingress.NewController(client, mesh.NewFixedWatcher(meshOf(o)), kubecontroller.Options{DomainSuffix: o.Domain})
	services := kclient.New[*corev1.Service](client)
	client.RunAndWait(stop)

	out := &outputs{map[string]*networking.Gateway{}, map[string]*virtualService{}}
	for _, g := range c.List(gvk.Gateway, "") {
		out.gateways[g.Namespace+"/"+g.Name] = g.Spec.(*networking.Gateway)
	}
	list := c.List(gvk.VirtualService, "")
	if !o.Older {
		list = newer(o, out, s.ingresses, services)
	}
	for _, v := range list {
		if err := out.addService(v.Namespace, v.Name, v.Annotations, v.Spec.(*networking.VirtualService)); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// newer returns the VirtualServices of the Ingresses that have Gateways, as newer istiods make them.
func newer(o converter.Options, out *outputs, ingresses []*networkingv1.Ingress, services kclient.Client[*corev1.Service]) (list []config.Config) {
	all := slices.Clone(ingresses)
	slices.SortFunc(all, func(a, b *networkingv1.Ingress) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
	})
	byHost := map[string]*config.Config{}
	for _, i := range all {
		g := ingress.ConvertIngressV1alpha3(*i, meshOf(o), o.Domain)
		if out.gateways[g.Namespace+"/"+g.Name] != nil {
			ingress.ConvertIngressVirtualService(*i, o.Domain, byHost, services)
		}
	}
	for host, v := range byHost {
		if rest, ok := strings.CutPrefix(v.Name, "-"); ok && host == "*" {
			v.Name = "*-" + rest
		}
		list = append(list, *v)
	}
	return list
}
