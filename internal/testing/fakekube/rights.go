package fakekube

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
)

// Rights are what roles grant, and which of that was used. Any goroutine may call its methods.
type Rights struct {
	mu    sync.Mutex     // guards all below
	used  map[string]int // by "verb group/resource", and " name" where the rule is for a name
	lacks []string
}

// ReadRights reads the rules of the Roles and ClusterRoles with a name from a file.
func ReadRights(t testing.TB, path, role string) *Rights {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := &Rights{used: map[string]int{}}
	for _, doc := range file.Docs {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
			Rules    []struct {
				APIGroups     []string `yaml:"apiGroups"`
				Resources     []string
				ResourceNames []string `yaml:"resourceNames"`
				Verbs         []string
			}
		}
		if err := yaml.NodeToValue(doc.Body, &o); err != nil || !strings.HasSuffix(o.Kind, "Role") || o.Metadata.Name != role {
			continue // objects of other kinds may have other fields of these names
		}
		for _, rule := range o.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						right := verb + " " + group + "/" + resource
						for _, name := range rule.ResourceNames {
							r.used[right+" "+name] = 0
						}
						if len(rule.ResourceNames) == 0 {
							r.used[right] = 0
						}
					}
				}
			}
		}
	}
	if len(r.used) == 0 {
		t.Fatalf("%s grants nothing to %s", path, role)
	}
	return r
}

// Refuse is a Server.Fault: it refuses requests that no rule grants. Discovery is granted to everybody.
func (r *Rights) Refuse(w http.ResponseWriter, req *http.Request) bool {
	p, is := placeOf(req.URL.Path)
	if !is {
		return false
	}
	of, name, query := p.of(), p.name, req.URL.Query()
	if strings.HasSuffix(req.URL.Path, "/status") {
		of += "/status"
	}
	verbs := []string{map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[req.Method]}
	switch {
	case query.Has("watch"):
		verbs = []string{"watch"}
	case req.Method == http.MethodGet && name == "":
		verbs = []string{"list"}
	case req.Method == http.MethodGet:
		verbs = []string{"get"}
	case strings.HasPrefix(req.Header.Get("Content-Type"), "application/apply-patch"):
		verbs = append(verbs, "create") // if there is no object, which a role should not depend on
	}
	if one, selects := strings.CutPrefix(query.Get("fieldSelector"), "metadata.name="); selects {
		name = one
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, verb := range verbs {
		granted := false
		for _, right := range []string{verb + " " + of, verb + " " + of + " " + name} {
			if _, is := r.used[right]; is {
				r.used[right]++
				granted = true
			}
		}
		if !granted {
			r.lacks = append(r.lacks, verb+" "+of+" "+name)
			Fail(w, http.StatusForbidden, "Forbidden")
			return true
		}
	}
	return false
}

// Lacks returns what was asked for and no rule grants.
func (r *Rights) Lacks() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lacks)
}

// Unused returns the rights with a text that no request needed, sorted.
func (r *Rights) Unused(with string) (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for right, n := range r.used {
		if n == 0 && strings.Contains(right, with) {
			all = append(all, right)
		}
	}
	slices.Sort(all)
	return all
}
