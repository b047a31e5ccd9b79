package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestTheFilesOfAFleetFitTheChart: the values that examples/fleet makes are values of the chart, what they name is mounted,
// and the network policy beside them is about the pods and the ports that there are. One more cluster changes no key, and
// nothing of the clusters before.
func TestTheFilesOfAFleetFitTheChart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "fleet")
	generate := func(clusters ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", append([]string{"../../examples/fleet/make.sh", dir}, clusters...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	generate("east=10.1.0.0/16", "west=10.2.0.0/16")
	same := map[string]string{}
	for _, file := range []string{"secrets/ca/tls.key", "secrets/tls/tls.crt", "secrets/operator/tls.key", "clusters/east/relay-ca.yaml", "istiod/west.yaml"} {
		same[file] = string(read(t, filepath.Join(dir, file)))
	}
	generate("east=10.1.0.0/16", "west=10.2.0.0/16", "north=fd00:3::/48")
	for file, before := range same {
		if string(read(t, filepath.Join(dir, file))) != before {
			t.Errorf("one more cluster changes %s", file)
		}
	}
	all := objects(t, mustRender(t, decode(t, read(t, filepath.Join(dir, "hub", "values.yaml")))).Documents)
	if at(all["Service relay"], "spec", "type") != "LoadBalancer" || all["NetworkPolicy relay"] != nil || all["Role relay-replicas"] == nil {
		t.Errorf("the chart makes other objects than the fleet needs")
	}
	pod := at(all["StatefulSet meshrelay"], "spec", "template")
	policy := decode(t, read(t, filepath.Join(dir, "hub", "networkpolicy.yaml")))
	if at(policy, "spec", "podSelector", "matchLabels", "app") != at(pod, "metadata", "labels", "app") {
		t.Error("the network policy is about other pods")
	}
	ports := func(list any, path ...any) (all []any) {
		items, _ := list.([]any)
		for _, item := range items {
			all = append(all, at(item, path...))
		}
		return all
	}
	sorted := func(a, b any) int { return int(a.(float64) - b.(float64)) }
	want := ports(at(pod, "spec", "containers", 0, "ports"), "containerPort")
	have := ports(at(policy, "spec", "ingress"), "ports", 0, "port")
	slices.SortFunc(want, sorted)
	slices.SortFunc(have, sorted)
	if len(want) != 5 || !slices.Equal(have, want) {
		t.Errorf("the network policy has the ports %v, the pods %v", have, want)
	}
	config, _ := at(all["ConfigMap meshrelay"], "data", "relay.yaml").(string)
	mounted := ports(at(pod, "spec", "containers", 0, "volumeMounts"), "mountPath")
	for _, path := range []string{"east/east", "west/west", "north/north", "tls/tls.crt", "tls/ca.crt"} {
		path = "/etc/relay-files/" + path
		if !strings.Contains(config, path) || !slices.Contains(mounted, any(filepath.Dir(path))) {
			t.Errorf("%s is not in the config, or not mounted: %v", path, mounted)
		}
	}
}
