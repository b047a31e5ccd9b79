package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// editor changes the file that "kubectl edit" gives it as the manifests of a tool do.
const editor = `sed -i -e 's/LEAST_REQUEST/RANDOM/' -e '/^  exportTo:/,+1d' "$1"` + "\n"

// kubectl runs a real kubectl with some input. It returns what kubectl prints.
func (k *kubernetes) kubectl(input string, args ...string) (string, error) {
	k.t.Helper()
	dir := k.t.TempDir()
	writeFile(k.t, filepath.Join(dir, "editor"), cmp.Or(k.editor, editor))
	cmd := exec.CommandContext(k.t.Context(), binary(k.t, "KUBECTL_BIN", "bin/kubectl"), append([]string{"--kubeconfig", k.kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+dir, "KUBE_EDITOR=sh "+filepath.Join(dir, "editor"))
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// rule is a DestinationRule of the namespace shop, which is for the own namespace alone if exportTo is "[.]".
func rule(name, simple, exportTo string) string {
	if exportTo != "" {
		exportTo = ", exportTo: " + exportTo
	}
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {namespace: shop, name: %s}\nspec: {host: %[1]s.example, trafficPolicy: {loadBalancer: {simple: %s}}%s}\n", name, simple, exportTo)
}

// ruleOf returns what the API server has of a DestinationRule.
func (k *kubernetes) ruleOf(name string) (simple string, exportTo []string, metadata string) {
	k.t.Helper()
	var o struct {
		Metadata json.RawMessage
		Spec     struct {
			ExportTo      []string `json:"exportTo"`
			TrafficPolicy struct {
				LoadBalancer struct{ Simple string } `json:"loadBalancer"`
			} `json:"trafficPolicy"`
		}
	}
	out, err := k.ask(http.MethodGet, objectPath("networking.istio.io/v1", "DestinationRule", "shop", name), "", nil)
	if err == nil {
		err = json.Unmarshal(out, &o)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return o.Spec.TrafficPolicy.LoadBalancer.Simple, o.Spec.ExportTo, string(o.Metadata)
}

// tools are how people and tools change the objects of a promoted site: with a manifest that has another value of one field, and
// lacks another one. docs/sites.md has the table.
var tools = []struct {
	name string
	args []string
	// refused is a part of the refusal. removes tells whether the field goes that the manifest lacks.
	refused string
	removes bool
}{
	{name: "edit", args: []string{"edit", "-n", "shop", "destinationrule", "edit"}, removes: true},
	{name: "apply", args: []string{"apply", "-f", "-"}},
	{name: "argocd", args: []string{"apply", "--field-manager=argocd-controller", "-f", "-"}},
	{name: "server-side", args: []string{"apply", "--server-side", "-f", "-"}, refused: "meshrelay-sink-dr"},
	{name: "helm4", args: []string{"apply", "--server-side", "--field-manager=helm", "-f", "-"}, refused: "meshrelay-sink-dr"},
	{name: "forced", args: []string{"apply", "--server-side", "--force-conflicts", "-f", "-"}},
	{name: "flux", args: []string{"apply", "--server-side", "--force-conflicts", "--field-manager=kustomize-controller", "-f", "-"}},
	{name: "merge", args: []string{"patch", "-n", "shop", "destinationrule", "merge", "--type=merge", "-p", `{"spec":{"exportTo":null,"trafficPolicy":{"loadBalancer":{"simple":"RANDOM"}}}}`}, removes: true},
	{name: "helm3", args: []string{"patch", "-n", "shop", "destinationrule", "helm3", "--type=merge", "--field-manager=helm", "-p", `{"spec":{"exportTo":null,"trafficPolicy":{"loadBalancer":{"simple":"RANDOM"}}}}`}, removes: true},
}

// TestToolsChangeObjectsOfAPromotedSite, and after the adoption each change shows as a difference, until it is put right.
func TestToolsChangeObjectsOfAPromotedSite(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t, "dr")
	k.defineIstio()
	k.createNamespace("istio-system")
	k.createNamespace("shop")
	dir := t.TempDir()
	for _, tool := range tools {
		writeFile(t, filepath.Join(dir, tool.name+".yaml"), rule(tool.name, "LEAST_REQUEST", `["."]`))
	}
	r := relayOf(t, "relay", fmt.Sprintf(`upstreams:
- {name: primary, file: {path: %q}}
views: [{name: all}]
sinks: [{name: dr, view: all, mode: apply, prune: true, conflicts: take, writesPerSecond: 1000, cluster: {kubeconfig: %q}}]
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, dir, k.kubeconfig)).start().ready()
	becomes := func(what string, is func(s sinkStatus) bool) {
		t.Helper()
		sinkIs(t, r, "dr", what, is)
	}
	becomes("all is written", func(s sinkStatus) bool { return s.Objects == len(tools) && len(s.Todo) == 0 })
	if out, err := relayCommand(t, "sink", "promote", "dr", "-c", r.config, "--yes"); err != nil {
		t.Fatal(err, out)
	}
	for _, tool := range tools {
		_, _, before := k.ruleOf(tool.name)
		if !strings.Contains(before, `"meshrelay.io/sink":"dr"`) || !strings.Contains(before, `"manager":"meshrelay-sink-dr"`) {
			t.Errorf("%s: a promotion touches it: %s", tool.name, before)
		}
		out, err := k.kubectl(rule(tool.name, "RANDOM", ""), tool.args...)
		if tool.refused != "" {
			if err == nil || !strings.Contains(out, tool.refused) || !strings.Contains(out, "onflict") {
				t.Errorf("%s is not refused: %v: %s", tool.name, err, out)
			}
			continue
		}
		if err != nil {
			t.Error(err)
		}
		simple, exportTo, _ := k.ruleOf(tool.name)
		if simple != "RANDOM" || (len(exportTo) == 0) != tool.removes {
			t.Errorf("%s: it has %s, and exportTo %q: %s", tool.name, simple, exportTo, out)
		}
	}
	// A second client-side apply removes what the first one had and this one lacks, as everywhere.
	for _, exportTo := range []string{`["."]`, ""} {
		if _, err := k.kubectl(rule("apply", "RANDOM", exportTo), "apply", "-f", "-"); err != nil {
			t.Error(err)
		}
	}
	if _, exportTo, _ := k.ruleOf("apply"); len(exportTo) > 0 {
		t.Errorf("apply: exportTo is %q", exportTo)
	}

	if out, err := relayCommand(t, "sink", "adopt", "dr", "-c", r.config, "--yes"); err != nil {
		t.Fatal(err, out)
	}
	changed := 0
	becomes("it is frozen", func(s sinkStatus) bool { return s.State == "frozen" })
	out, code := r.command("sink", "diff", "dr", "--limit", "0")
	for _, tool := range tools {
		if has := strings.Contains(out, "DestinationRule shop/"+tool.name+"\n"); code != 0 || has != (tool.refused == "") {
			t.Errorf("the difference of %s is told: %v: %d %s", tool.name, has, code, out)
		}
		if tool.refused == "" {
			changed++
		}
	}
	if n := strings.Count(out, "-      simple: RANDOM\n+      simple: LEAST_REQUEST\n"); n != changed {
		t.Errorf("%d of %d changes show: %s", n, changed, out)
	}
	if out, code := r.command("unfreeze", "sink/dr"); code != 0 {
		t.Fatal(code, out)
	}
	becomes("all is put right", func(s sinkStatus) bool { return s.State == "writing" && len(s.Todo) == 0 && s.Drifted == changed })
	for _, tool := range tools {
		if simple, exportTo, of := k.ruleOf(tool.name); simple != "LEAST_REQUEST" || fmt.Sprint(exportTo) != "[.]" {
			t.Errorf("%s: it has %s, and exportTo %q: %s", tool.name, simple, exportTo, of)
		}
	}
	if out, code := r.command("sink", "diff", "dr"); code != 0 || out != "sink dr: no differences\n" {
		t.Errorf("%d %s", code, out)
	}
}
