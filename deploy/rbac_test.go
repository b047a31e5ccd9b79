package deploy_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

	"meshrelay/mirror"
)

// rbacObject is a role or a binding.
type rbacObject struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Rules    []rbacRule
	RoleRef  struct{ Kind, Name string } `yaml:"roleRef"`
	Subjects []struct{ Kind, Name, Namespace string }
}

type rbacRule struct {
	APIGroups     []string `yaml:"apiGroups"`
	Resources     []string
	ResourceNames []string `yaml:"resourceNames"`
	Verbs         []string
}

// rendered returns the objects that the chart makes of the values of ci/everything.yaml, by kind and name.
func rendered(t *testing.T) map[string]rbacObject {
	t.Helper()
	file, err := parser.ParseBytes(read(t, "../tools/chart/testdata/rendered/everything.yaml"), 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]rbacObject{}
	for _, doc := range file.Docs {
		var o rbacObject
		if err := yaml.NodeToValue(doc.Body, &o); err == nil { // objects of other kinds may have other fields of these names
			all[o.Kind+" "+o.Metadata.Name] = o
		}
	}
	return all
}

// rbac returns the objects of a file by kind.
func rbac(t *testing.T, name string) map[string]rbacObject {
	t.Helper()
	file, err := parser.ParseBytes(read(t, "kubernetes/rbac-"+name+".yaml"), 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]rbacObject{}
	for _, doc := range file.Docs {
		var o rbacObject
		if err := yaml.NodeToValue(doc.Body, &o); err != nil {
			t.Fatal(err)
		}
		all[o.Kind] = o
	}
	return all
}

// granted returns each right of a role, as "verb group/resource name".
func granted(o rbacObject) (all []string) {
	for _, r := range o.Rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s/%s %s", verb, group, resource, strings.Join(r.ResourceNames, ","))))
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

// TestRolesGrantWhatTheRelayAsksAndNoMore compares them with the kinds that the relay mirrors.
func TestRolesGrantWhatTheRelayAsksAndNoMore(t *testing.T) {
	want := []string{"get /namespaces kube-system"}
	for _, k := range mirror.Kinds() {
		if k.Kind == mirror.MeshConfig {
			continue
		}
		for _, verb := range []string{"list", "watch"} {
			want = append(want, fmt.Sprintf("%s %s/%s", verb, k.Kind.Group, k.Plural))
		}
	}
	const definitions = "apiextensions.k8s.io/customresourcedefinitions"
	want = append(want, "list "+definitions, "watch "+definitions)
	slices.Sort(want)
	for _, name := range []string{"source", "remote-reader"} {
		if have := granted(rbac(t, name)["ClusterRole"]); !slices.Equal(have, want) {
			t.Errorf("rbac-%s.yaml grants\n%s\nwant\n%s", name, strings.Join(have, "\n"), strings.Join(want, "\n"))
		}
	}
	want = []string{"get /namespaces kube-system"}
	for _, k := range mirror.Kinds() {
		if k.Kind != mirror.MeshConfig { // it is no object
			for _, verb := range []string{"get", "list", "watch", "create", "patch", "delete"} {
				want = append(want, fmt.Sprintf("%s %s/%s", verb, k.Kind.Group, k.Plural))
			}
		}
	}
	slices.Sort(want)
	if have := granted(rbac(t, "sink")["ClusterRole"]); !slices.Equal(have, want) {
		t.Errorf("rbac-sink.yaml grants\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	const lease = "coordination.k8s.io/leases"
	for name, want := range map[string][]string{
		"sink":     {"create " + lease, "get " + lease + " meshrelay-sink-dr", "update " + lease + " meshrelay-sink-dr"},
		"replicas": {"create /configmaps", "get /configmaps relay-orders", "update /configmaps relay-orders", "watch /configmaps relay-orders"},
	} {
		slices.Sort(want)
		if have := granted(rbac(t, name)["Role"]); !slices.Equal(have, want) {
			t.Errorf("rbac-%s.yaml grants %q, want %q", name, have, want)
		}
	}
	of := granted(rendered(t)["Role relay-clients-replicas"])
	for _, right := range []string{"create " + lease, "get " + lease + " relay-orders-conditions", "update " + lease + " relay-orders-conditions"} {
		if !slices.Contains(of, right) {
			t.Errorf("with rbac.status, replicas may not %s: %q", right, of)
		}
	}
	hub := []string{"list /secrets"}
	if have := granted(rbac(t, "hub")["Role"]); !slices.Equal(have, hub) {
		t.Errorf("rbac-hub.yaml grants %q, want %q", have, hub)
	}
}

// TestRolesForStatusConditionsGrantWhatTheRelayAsks: with rbac.status, a source is read by object, and its
// status is patched.
func TestRolesForStatusConditionsGrantWhatTheRelayAsks(t *testing.T) {
	all := rendered(t)
	for _, name := range []string{"relay-clients-source", "relay-clients-reader"} {
		have := granted(all["ClusterRole "+name])
		for _, k := range mirror.Kinds() {
			if k.Kind == mirror.MeshConfig { // it is no object
				continue
			}
			resource := k.Kind.Group + "/" + k.Plural
			for _, right := range []string{"get " + resource, "list " + resource, "watch " + resource, "patch " + resource + "/status"} {
				if !slices.Contains(have, right) {
					t.Errorf("%s does not grant %s", name, right)
				}
			}
		}
		if writes := slices.DeleteFunc(slices.Clone(have), func(right string) bool {
			verb, of, _ := strings.Cut(right, " ")
			return slices.Contains([]string{"get", "list", "watch"}, verb) || verb == "patch" && strings.HasSuffix(of, "/status")
		}); len(writes) > 0 {
			t.Errorf("%s grants %q", name, writes)
		}
	}
}

// TestBindingsLeadToTheirRoles: a binding to a role that does not exist grants nothing.
func TestBindingsLeadToTheirRoles(t *testing.T) {
	for name, account := range map[string]string{"source": "relay", "remote-reader": "relay-reader", "hub": "relay", "sink": "relay-sink", "replicas": "relay"} {
		all := rbac(t, name)
		found := false
		for _, kind := range slices.Sorted(maps.Keys(all)) {
			b := all[kind]
			if !strings.HasSuffix(kind, "Binding") {
				continue
			}
			found = true
			role := all[b.RoleRef.Kind]
			if role.Metadata.Name != b.RoleRef.Name || role.Metadata.Namespace != b.Metadata.Namespace {
				t.Errorf("rbac-%s.yaml: the %s leads to %s %s", name, kind, b.RoleRef.Kind, b.RoleRef.Name)
			}
			if len(b.Subjects) != 1 || b.Subjects[0].Name != account || b.Subjects[0].Namespace != "istio-system" {
				t.Errorf("rbac-%s.yaml: the %s is for %v", name, kind, b.Subjects)
			}
		}
		if !found {
			t.Errorf("rbac-%s.yaml binds nothing", name)
		}
	}
	if made := rbac(t, "remote-reader")["ServiceAccount"]; made.Metadata.Name != "relay-reader" || made.Metadata.Namespace != "istio-system" {
		t.Errorf("rbac-remote-reader.yaml makes the service account %+v", made.Metadata)
	}
}
