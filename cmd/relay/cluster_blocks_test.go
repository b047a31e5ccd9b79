package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"meshrelay/docs"
)

// clusterBlock is a block of commands that need a cluster: "```console cluster".
var clusterBlock = regexp.MustCompile("(?ms)^```console cluster\n(.*?)^```$")

// markdown returns the pages for users, by their path from the root of the repository.
func markdown(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "examples/*/*.md", "deploy/*.md", "deploy/*/*.md"} {
		paths, err := filepath.Glob("../../" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			all[strings.TrimPrefix(filepath.ToSlash(path), "../../")] = fileText(t, path)
		}
	}
	return all
}

func fileText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestConsoleBlocksForAClusterFitTheProductAndTheManifests: commands of the relay and their flags, and what kubectl and
// helm are told to look at: objects, labels, files.
func TestConsoleBlocksForAClusterFitTheProductAndTheManifests(t *testing.T) {
	manifests := map[string]string{}
	for _, name := range []string{"relay.yaml", "rbac-remote-reader.yaml", "rbac-source.yaml", "rbac-hub.yaml", "rbac-sink.yaml"} {
		manifests[name] = fileText(t, "../../deploy/kubernetes/"+name)
	}
	n := 0
	for path, page := range markdown(t) {
		c := cluster{page: page, manifests: manifests, written: map[string]bool{}}
		for _, m := range clusterBlock.FindAllStringSubmatch(page, -1) {
			for line := range strings.Lines(m[1]) {
				command, is := strings.CutPrefix(strings.TrimSpace(line), "$ ")
				if !is {
					t.Errorf("%s: nothing checks this output of a block for a cluster: %s", path, line)
					continue
				}
				n++
				if err := c.check(command); err != nil {
					t.Errorf("%s: %s: %v", path, command, err)
				}
			}
		}
	}
	if n < 20 {
		t.Errorf("%d commands found", n)
	}
}

// cluster checks the commands of one page.
type cluster struct {
	page      string
	manifests map[string]string // by file name
	written   map[string]bool   // the files that commands before have written
}

// word is a word of a shell, perhaps in quotes.
var word = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)

func (c *cluster) check(line string) error {
	line, to, redirected := strings.Cut(line, " > ")
	if redirected {
		defer func() { c.written[to] = true }()
	}
	for _, command := range strings.Split(line, " | ") {
		words := word.FindAllString(command, -1)
		check, known := map[string]func([]string) error{"kubectl": c.kubectl, "helm": c.helm, "relay": c.relay, "diff": c.diff}[words[0]]
		if !known {
			return fmt.Errorf("the test knows no program %s", words[0])
		}
		if err := check(words[1:]); err != nil {
			return err
		}
	}
	return nil
}

// relay checks a command in a pod.
func (c *cluster) relay(args []string) error {
	for i, a := range args {
		if i > 0 && args[i-1] == "-c" && !strings.Contains(c.manifests["relay.yaml"], `"-c", "`+a+`"`) {
			return fmt.Errorf("the manifest has no config file %s", a)
		}
	}
	return parses(strings.Join(args, " "))
}

// diff compares two files that commands before have written.
func (c *cluster) diff(files []string) error {
	if len(files) != 2 || !c.written[files[0]] || !c.written[files[1]] {
		return fmt.Errorf("no command before has written both of %q", files)
	}
	return nil
}

// flags takes the flags out of arguments: those in known, which tells whether they have a value.
func flags(args []string, known map[string]bool) (rest []string, given map[string]string, err error) {
	given = map[string]string{}
	for i := 0; i < len(args); i++ {
		if !strings.HasPrefix(args[i], "-") {
			rest = append(rest, args[i])
			continue
		}
		name, value, is := strings.Cut(args[i], "=")
		valued, ok := known[name]
		switch {
		case !ok:
			return nil, nil, fmt.Errorf("the test knows no flag %s here", name)
		case valued && !is:
			if i++; i == len(args) {
				return nil, nil, fmt.Errorf("%s needs a value", name)
			}
			value = args[i]
		}
		given[name] = strings.Trim(value, `'"`)
	}
	return rest, given, nil
}

func (c *cluster) kubectl(args []string) error {
	var inside []string
	if i := slices.Index(args, "--"); i >= 0 {
		args, inside = args[:i], args[i+1:]
	}
	rest, given, err := flags(args, map[string]bool{
		"--context": true, "-n": true, "-f": true, "-k": true, "-o": true, "-l": true, "-i": false, "--timeout": true,
		"--audience": true, "--duration": true, "--from-file": true, "--replicas": true,
		"--server-side": false, "--force-conflicts": false, "--type": true, "--patch-file": true,
	})
	if err != nil || len(rest) == 0 {
		return fmt.Errorf("%d arguments: %w", len(rest), err)
	}
	if file := given["--from-file"] + given["-f"] + given["--patch-file"]; file != "" && !c.has(file) {
		return fmt.Errorf("no file %s", file)
	}
	for label := range strings.SplitSeq(given["-l"], ",") {
		name, value, _ := strings.Cut(label, "=")
		switch {
		case name == "" || name == "pod-template-hash": // of the pods of a Deployment
		case name == "kubernetes.io/service-name": // of the slices of a Service
			if err := c.object("service", value); err != nil {
				return err
			}
		case !strings.Contains(c.manifests["relay.yaml"], " "+name+": "+value+"\n"):
			return fmt.Errorf("the manifest has no label %s", label)
		}
	}
	if audience := given["--audience"]; audience != "" && !strings.Contains(c.manifests["relay.yaml"], fmt.Sprintf("audience: %q", audience)) {
		return fmt.Errorf("the manifest has no token for %s", audience)
	}
	if slices.Contains([]string{"edit", "patch"}, rest[0]) && slices.Contains([]string{"destinationrule", "virtualservice"}, rest[1]) {
		return nil // of an example, whose commands e2e runs
	}
	if given["-n"] != "istio-system" && rest[0] != "apply" {
		return fmt.Errorf("namespace %q: want that of the manifests, istio-system", given["-n"])
	}
	switch verb := rest[0]; {
	case verb == "exec" && len(rest) == 2 && len(inside) > 0 && inside[0] == "relay":
		if err := c.object("pod", rest[1]); err != nil {
			return err
		}
		return c.relay(inside[1:])
	case len(inside) > 0:
		return fmt.Errorf("%s takes no command", verb)
	case verb == "logs" && len(rest) == 2,
		verb == "port-forward" && len(rest) == 3 && strings.Contains(c.manifests["relay.yaml"], "containerPort: "+rest[2][strings.Index(rest[2], ":")+1:]+"}"):
		return c.object("pod", rest[1])
	case verb == "rollout" && len(rest) == 3 && slices.Contains([]string{"status", "restart"}, rest[1]):
		return c.object("", rest[2])
	case slices.Contains([]string{"scale", "delete"}, verb) && len(rest) > 1 && strings.Contains(rest[1], "/"):
		for _, name := range rest[1:] {
			if err := c.object("", name); err != nil {
				return err
			}
		}
		return nil
	case slices.Contains([]string{"get", "edit", "delete"}, verb) && len(rest) == 3:
		return c.object(rest[1], rest[2])
	case slices.Contains([]string{"get", "delete"}, verb) && len(rest) == 2 && given["-l"] != "":
		return nil
	case verb == "create" && len(rest) == 3 && (rest[1] == "token" || rest[1] == "serviceaccount"):
		return c.object("serviceaccount", rest[2])
	case verb == "create" && len(rest) == 3 && rest[1] == "configmap" && strings.Contains(c.page, "configMap: "+rest[2]):
		return nil // the values name it
	case verb == "create" && len(rest) == 4 && rest[1] == "secret" && rest[2] == "generic" && strings.Contains(c.page, "secret: "+rest[3]):
		return nil // likewise
	case slices.Contains([]string{"apply", "diff"}, verb) && len(rest) == 1 && given["-f"] != "":
		return nil
	}
	return fmt.Errorf("the test does not know kubectl %s", strings.Join(rest, " "))
}

// foreign are the objects that the pages name and the manifests do not have: those of Istio.
var foreign = []string{"deployment/istiod", "configmap/istio", "configmap/istio-ca-root-cert"}

// object returns an error if neither the manifests nor foreign has an object, given as KIND NAME or KIND/NAME.
func (c *cluster) object(kind, name string) error {
	if kind == "" {
		kind, name, _ = strings.Cut(name, "/")
	}
	if slices.Contains(foreign, kind+"/"+name) {
		return nil
	}
	if kind == "pod" { // of the StatefulSet
		i := strings.LastIndex(name, "-")
		number, err := strconv.Atoi(name[i+1:])
		if err != nil || i < 0 || number > 1 {
			return fmt.Errorf("pod %s: two replicas are called NAME-0 and NAME-1", name)
		}
		kind, name = "statefulset", name[:i]
	}
	for _, text := range c.manifests {
		for _, one := range strings.Split(text, "\n---\n") {
			if regexp.MustCompile(`(?im)^kind: `+kind+`$`).MatchString(one) && strings.Contains(one, "\nmetadata:\n  name: "+name+"\n") {
				return nil
			}
		}
	}
	return fmt.Errorf("no manifest has %s/%s", kind, name)
}

// has reports whether a file is in the repository or beside the manifests, was written before, or is shown on the page.
func (c *cluster) has(file string) bool {
	_, err := os.Stat("../../" + file)
	return err == nil || c.written[file] || c.manifests[file] != "" || strings.Contains(c.page, "```yaml\n# "+file+"\n")
}

func (c *cluster) helm(args []string) error {
	rest, given, err := flags(args, map[string]bool{"-n": true, "-f": true, "--kube-context": true})
	switch {
	case err != nil:
		return err
	case given["-n"] != "istio-system" || len(rest) < 2 || !strings.Contains(c.manifests["relay.yaml"], "name: "+rest[1]+"\n"):
		return fmt.Errorf("%q, %v: want the name and the namespace of the manifests", rest, given)
	case rest[0] == "uninstall" && len(rest) == 2:
		return nil
	case !slices.Contains([]string{"install", "upgrade"}, rest[0]) || len(rest) != 3:
		return fmt.Errorf("the test does not know helm %s", strings.Join(rest, " "))
	}
	if _, err := os.Stat("../../" + rest[2] + "/Chart.yaml"); err != nil {
		return err
	}
	if file := given["-f"]; file != "values.yaml" && file != "fleet/hub/values.yaml" { // which a script of the example makes
		return fmt.Errorf("values %q", file)
	}
	return nil
}

// TestValuesInTheDocumentsAreThoseOfTheChart: each value exists, and each field of config is in the reference.
func TestValuesInTheDocumentsAreThoseOfTheChart(t *testing.T) {
	var chart map[string]any
	if err := yaml.Unmarshal([]byte(fileText(t, "../../deploy/chart/values.yaml")), &chart); err != nil {
		t.Fatal(err)
	}
	n, fields := 0, docs.Fields()
	for path, page := range markdown(t) {
		for _, m := range regexp.MustCompile("(?ms)^```yaml\n(# values.yaml\n.*?)^```$").FindAllStringSubmatch(page, -1) {
			var shown map[string]any
			if err := yaml.Unmarshal([]byte(m[1]), &shown); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			n++
			for _, key := range slices.Sorted(maps.Keys(shown)) {
				if key == "config" {
					for _, field := range leaves("", shown[key]) {
						if _, is := fields[field]; !is {
							t.Errorf("%s: the config file has no field %s", path, field)
						}
					}
				} else if err := chartHas(chart, shown, key); err != nil {
					t.Errorf("%s: the chart has no value %v", path, err)
				}
			}
		}
	}
	if n < 2 {
		t.Errorf("%d blocks found", n)
	}
}

// chartHas returns an error if a chart does not have a key that values have. What is empty in the chart takes any keys.
func chartHas(chart, values map[string]any, key string) error {
	of, is := chart[key]
	if !is {
		return fmt.Errorf("%s", key)
	}
	known, isMap := of.(map[string]any)
	below, both := values[key].(map[string]any)
	if !isMap || !both || len(known) == 0 {
		return nil
	}
	for name := range below {
		if err := chartHas(known, below, name); err != nil {
			return fmt.Errorf("%s.%w", key, err)
		}
	}
	return nil
}

// leaves returns the paths of the fields of a config, as the reference writes them.
func leaves(path string, value any) (all []string) {
	switch v := value.(type) {
	case map[string]any:
		for key, below := range v {
			all = append(all, leaves(strings.TrimPrefix(path+"."+key, "."), below)...)
		}
		return all
	case []any:
		for _, below := range v {
			if _, isMap := below.(map[string]any); isMap {
				all = append(all, leaves(path+"[]", below)...)
			} else {
				all = append(all, path)
			}
		}
		return all
	}
	return []string{path}
}
