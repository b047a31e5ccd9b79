package ingress

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"
)

// world is a State that is told of YAML documents.
type world struct {
	t *testing.T
	*State
}

func newWorld(t *testing.T, o Options, manifests ...string) *world {
	t.Helper()
	w := &world{t, New(o)}
	w.apply(manifests...)
	return w
}

// synced tells that all inputs have synced.
func (w *world) synced() *world {
	for i := range inputs {
		w.Synced(i)
	}
	return w
}

func (w *world) apply(manifests ...string) {
	w.t.Helper()
	for _, m := range manifests {
		for doc := range strings.SplitSeq(m, "\n---") {
			if err := tell(w.State, jsonOf(w.t, doc)); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

func jsonOf(t testing.TB, doc string) []byte {
	t.Helper()
	b, err := yaml.YAMLToJSON([]byte(doc))
	if err != nil {
		t.Fatalf("%v in\n%s", err, doc)
	}
	return b
}

// tell tells a State of an object in JSON.
func tell(s *State, b []byte) error {
	var o struct{ Kind string }
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&o); err != nil {
		return err
	}
	return tellAs(s, o.Kind, b)
}

func tellAs(s *State, kind string, b []byte) error {
	var o object
	if err := json.Unmarshal(b, &o); err != nil {
		return err
	}
	switch kind {
	case "Ingress":
		i, err := o.ingress()
		if err == nil {
			s.SetIngress(i)
		}
		return err
	case "IngressClass":
		c, err := o.class()
		if err == nil {
			s.SetClass(c)
		}
		return err
	case "Service":
		v, err := o.service()
		if err == nil {
			s.SetService(v)
		}
		return err
	}
	return fmt.Errorf("kind %q", kind)
}

// object is an object in JSON.
type object struct {
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Created     time.Time         `json:"creationTimestamp"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec json.RawMessage `json:"spec"`
}

func (o *object) name() Name { return Name{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name} }

func (o *object) ingress() (*Ingress, error) {
	return IngressOf(o.name(), o.Metadata.Created, o.Metadata.Annotations, o.Spec)
}

func (o *object) class() (*Class, error) { return ClassOf(o.name(), o.Spec) }

func (o *object) service() (*Service, error) { return ServiceOf(o.name(), o.Spec) }

// objectOf decodes an object.
func objectOf(t testing.TB, b []byte) *object {
	t.Helper()
	var o object
	if err := json.Unmarshal(b, &o); err != nil {
		t.Fatalf("%v in\n%s", err, b)
	}
	return &o
}

// allInputs are all inputs of a conversion.
type allInputs struct {
	Ingresses []*Ingress
	Classes   []*Class
	Services  []*Service
}

// convertAll returns the outputs of inputs: Gateways before VirtualServices, each sorted by namespace
// and name.
func convertAll(in allInputs, o Options) (outputs []*Output) {
	s := New(o)
	for _, c := range in.Classes {
		s.SetClass(c)
	}
	for _, v := range in.Services {
		s.SetService(v)
	}
	for _, i := range in.Ingresses {
		s.SetIngress(i)
	}
	for i := range inputs {
		s.Synced(i)
	}
	return append(outputs, s.Flush()...)
}

// want compares the changes since the last call with lines like those of show.
func (w *world) want(lines ...string) {
	w.t.Helper()
	got := []string{}
	for _, c := range w.Flush() {
		got = append(got, show(c))
	}
	if diff := cmp.Diff(append([]string{}, lines...), got); diff != "" {
		w.t.Errorf("changes, - wanted, + got:\n%s", diff)
	}
}

// show returns "gw NS/NAME: SERVER, …" or "vs NS/NAME: HOST @ GATEWAY, … : ROUTE, …", and "-" for
// an output that is gone. Servers are PORT:HOST+…=SECRET, routes MATCH>DESTINATION.
func show(c *Output) string {
	name := c.Key.Namespace + "/" + strings.ReplaceAll(c.Key.Name, generatedName, "~")
	switch {
	case c.Body == nil && c.Key.Kind == gatewayKind:
		return "gw " + name + ": -"
	case c.Body == nil:
		return "vs " + name + ": -"
	case c.Key.Kind == gatewayKind:
		var servers []string
		for _, s := range c.Body.(*networking.Gateway).Servers {
			server := fmt.Sprintf("%d:%s", s.Port.Number, strings.Join(s.Hosts, "+"))
			if s.Tls != nil {
				server += "=" + s.Tls.CredentialName
			}
			servers = append(servers, server)
		}
		return "gw " + name + ": " + strings.Join(servers, ", ")
	}
	vs := c.Body.(*networking.VirtualService)
	var routes []string
	for _, r := range vs.Http {
		d := r.Route[0].Destination
		routes = append(routes, fmt.Sprintf("%s>%s:%d", showMatch(r), strings.TrimSuffix(d.Host, ".svc.cluster.local"), d.Port.Number))
	}
	gateways := strings.ReplaceAll(strings.Join(vs.Gateways, ", "), generatedName, "~")
	return fmt.Sprintf("vs %s: %s @ %s: %s", name, strings.Join(vs.Hosts, "+"), gateways, strings.Join(routes, ", "))
}

func showMatch(r *networking.HTTPRoute) string {
	if len(r.Match) == 0 {
		return "all"
	}
	switch m := r.Match[0].Uri.MatchType.(type) {
	case *networking.StringMatch_Exact:
		return "=" + m.Exact
	case *networking.StringMatch_Prefix:
		return m.Prefix + "…"
	}
	return "?"
}

// ingress returns a manifest. Rules are HOST PATH SERVICE:PORT, TLS entries tls SECRET HOST….
func ingress(namespace, name string, created int, rules ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "kind: Ingress\nmetadata:\n  name: %s\n  namespace: %s\n  creationTimestamp: \"2024-01-01T00:00:%02dZ\"\nspec:\n", name, namespace, created)
	ofTLS := func(r string) bool { return strings.HasPrefix(r, "tls ") }
	if slices.ContainsFunc(rules, ofTLS) {
		b.WriteString("  tls:\n")
	}
	for _, r := range rules {
		if f := strings.Fields(r); ofTLS(r) {
			fmt.Fprintf(&b, "  - {secretName: %s, hosts: [%s]}\n", f[1], strings.Join(quoted(f[2:]), ", "))
		}
	}
	b.WriteString("  rules:\n")
	for _, r := range rules {
		if ofTLS(r) {
			continue
		}
		f := strings.Fields(r)
		service, port, _ := strings.Cut(f[2], ":")
		key := "number"
		if strings.Trim(port, "0123456789") != "" {
			key = "name"
		}
		fmt.Fprintf(&b, "  - {host: %q, http: {paths: [{path: %s, pathType: Prefix, backend: {service: {name: %s, port: {%s: %s}}}}]}}\n",
			strings.Trim(f[0], "-"), f[1], service, key, port)
	}
	return b.String()
}

func quoted(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = fmt.Sprintf("%q", s)
	}
	return out
}

const class = "kind: IngressClass\nmetadata: {name: %s}\nspec: {controller: %s}"

func service(name, port string, number int) string {
	return fmt.Sprintf("kind: Service\nmetadata: {name: %s, namespace: shop}\nspec: {ports: [{name: other, port: 1}, {name: %s, port: %d}]}", name, port, number)
}
