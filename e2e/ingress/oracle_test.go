package ingress

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/e2e/internal/converter"
)

func start(t *testing.T) *converter.Converter {
	t.Helper()
	c, err := converter.Start("../..", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// fixedSeeds is how many seeds are the same each time.
const fixedSeeds = 50

// TestIngressRandomSets compares as many random sets as ORACLE_SETS names. ORACLE_SEED is the seed
// of the first one.
func TestIngressRandomSets(t *testing.T) {
	c := start(t)
	sets, first, random := number(t, "ORACLE_SETS", fixedSeeds), number(t, "ORACLE_SEED", 0), 0
	if os.Getenv("ORACLE_SEED") == "" {
		random = rand.IntN(1_000_000_000)
	}
	seen := map[string]int{}
	for i := 0; i < sets && !t.Failed(); i++ {
		seed := first + i
		if i >= fixedSeeds {
			seed += random
		}
		s, o := randomSet(seed)
		for _, o.Older = range []bool{true, false} {
			t.Run(fmt.Sprintf("seed %d older %v", seed, o.Older), func(t *testing.T) { compare(t, c, o, s, seen) })
		}
	}
	for _, what := range []string{sharedTLS, oneName, ambiguous, off, equalHosts} {
		t.Logf("%d times: %s", seen[what], what)
		if seen[what] < sets/minPerSeed {
			t.Errorf("%d times in %d sets: %s", seen[what], sets, what)
		}
	}
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		t.Fatalf("%s=%s is no number", name, v)
	}
	return n
}

// TestIngressGoldenFiles compares with what istiod's authors expect of it, and istiod's own code
// with the relay on the same Ingresses.
func TestIngressGoldenFiles(t *testing.T) {
	c := start(t)
	dir := filepath.Join(istioDir(t), "pilot/pkg/config/kube/ingress/testdata")
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%d files in %s: %v", len(files), dir, err)
	}
	for _, file := range files {
		for _, older := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s older %v", filepath.Base(file), older), func(t *testing.T) {
				s, o := readIngresses(t, file), converter.Options{Mode: converter.Default, Domain: "mydomain", Older: older}
				compare(t, c, o, s, map[string]int{})
				golden(t, relays(t, c, o, s), file+".golden")
			})
		}
	}
}

func istioDir(t *testing.T) string {
	t.Helper()
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "istio.io/istio")
	list.Env = append(os.Environ(), "GOWORK=off")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func documents(t *testing.T, file string) (docs [][]byte) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range strings.Split(string(b), "---\n") {
		if j, err := yaml.YAMLToJSON([]byte(doc)); err != nil {
			t.Fatal(err)
		} else if string(j) != "null" {
			docs = append(docs, j)
		}
	}
	return docs
}

func readIngresses(t *testing.T, file string) *set {
	t.Helper()
	s := &set{}
	for _, doc := range documents(t, file) {
		i := &networkingv1.Ingress{}
		if err := json.Unmarshal(doc, i); err != nil {
			t.Fatal(err)
		}
		s.ingresses = append(s.ingresses, i)
	}
	return s
}

// golden compares outputs with a golden file.
func golden(t *testing.T, got *outputs, file string) {
	t.Helper()
	docs := documents(t, file)
	if len(docs) != len(got.gateways)+len(got.hosts) {
		t.Errorf("%d objects in %s; the relay has %d Gateways and %d hosts", len(docs), file, len(got.gateways), len(got.hosts))
	}
	services := map[string]proto.Message{}
	for _, v := range got.hosts {
		services[v.name] = v.body
	}
	for _, doc := range docs {
		var o struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
			Spec     json.RawMessage
		}
		if err := json.Unmarshal(doc, &o); err != nil {
			t.Fatal(err)
		}
		name := o.Metadata.Namespace + "/" + o.Metadata.Name
		var want, have proto.Message = &networking.Gateway{}, got.gateways[name]
		if o.Kind == "VirtualService" {
			want, have = &networking.VirtualService{}, services[name]
		}
		if err := protojson.Unmarshal(bytes.TrimSpace(o.Spec), want); err != nil {
			t.Fatal(err)
		}
		if have == nil || !proto.Equal(have, want) {
			t.Errorf("%s %s\nrelay  %s\ngolden %s", o.Kind, name, text(have), text(want))
		}
	}
}
