package main

import (
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/loader"
	"helm.sh/helm/v4/pkg/kube"
)

// helm returns Helm's configuration for a cluster, with its releases in Secrets.
func (c *cluster) helm() *action.Configuration {
	c.t.Helper()
	cfg := action.NewConfiguration(action.ConfigurationSetLogger(slog.NewTextHandler(io.Discard, nil)))
	if err := cfg.Init(c.settings.RESTClientGetter(), namespace, "secrets"); err != nil {
		c.t.Fatal(err)
	}
	return cfg
}

func (c *cluster) install(values map[string]any, change func(*action.Install)) error {
	c.t.Helper()
	chart, err := loader.Load("../../deploy/chart")
	if err != nil {
		c.t.Fatal(err)
	}
	in := action.NewInstall(c.helm())
	in.ReleaseName, in.Namespace, in.WaitStrategy = "meshrelay", namespace, kube.HookOnlyStrategy
	if change != nil {
		change(in)
	}
	_, err = in.RunWithContext(c.t.Context(), chart, values)
	return err
}

func (c *cluster) upgrade(values map[string]any) error {
	c.t.Helper()
	chart, err := loader.Load("../../deploy/chart")
	if err != nil {
		c.t.Fatal(err)
	}
	up := action.NewUpgrade(c.helm())
	up.Namespace, up.WaitStrategy = namespace, kube.HookOnlyStrategy
	_, err = up.RunWithContext(c.t.Context(), "meshrelay", chart, values)
	return err
}

func (c *cluster) uninstall() error {
	un := action.NewUninstall(c.helm())
	un.WaitStrategy = kube.HookOnlyStrategy
	_, err := un.Run("meshrelay")
	return err
}

// podAndClaims returns what the controller would make of a StatefulSet for its first replica.
func podAndClaims(set object) (all []object) {
	name := at(set, "metadata", "name").(string) + "-0"
	template := at(set, "spec", "template").(object)
	metadata, spec := maps.Clone(template["metadata"].(object)), maps.Clone(template["spec"].(object))
	metadata["name"] = name
	for _, claim := range at(set, "spec", "volumeClaimTemplates").([]any) {
		volume := at(claim, "metadata", "name").(string)
		spec["volumes"] = append(slices.Clone(spec["volumes"].([]any)), object{
			"name": volume, "persistentVolumeClaim": object{"claimName": volume + "-" + name},
		})
		all = append(all, object{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": object{
			"name": volume + "-" + name, "labels": at(set, "spec", "selector", "matchLabels"),
		}, "spec": at(claim, "spec")})
	}
	return append(all, object{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

// TestTheChartOnAnAPIServer shares one cluster, whose start takes most of the time.
func TestTheChartOnAnAPIServer(t *testing.T) {
	c := newCluster(t)
	t.Run("every object is accepted strictly", c.sub(everyObjectIsAccepted))
	t.Run("install, upgrade and uninstall leave the volumes alone", c.sub(installUpgradeUninstall))
	t.Run("a release takes plain manifests over", c.sub(takeOver))
}

// sub returns a test of its own that uses the cluster.
func (c *cluster) sub(test func(*testing.T, *cluster)) func(*testing.T) {
	return func(t *testing.T) {
		own := *c
		own.t = t
		test(t, &own)
	}
}

func everyObjectIsAccepted(t *testing.T, c *cluster) {
	all := examples(t)
	all["defaults"] = nil
	for name, values := range all {
		for key, o := range objects(t, mustRender(t, values).Documents) {
			made := []object{o}
			if strings.HasPrefix(key, "StatefulSet ") {
				made = append(made, podAndClaims(o)...)
			}
			for _, o := range made {
				if err := c.create(o, true); err != nil {
					t.Errorf("%s: %s: %v", name, nameOf(o), err)
				}
			}
		}
	}

	// That was worth something only if mistakes are noticed.
	set := objects(t, mustRender(t, nil).Documents)["StatefulSet meshrelay"]
	pod := podAndClaims(set)[1]
	pod["spec"].(object)["terminationGracePeriod"] = 30
	if err := c.create(pod, true); err == nil || !strings.Contains(err.Error(), "terminationGracePeriod") {
		t.Errorf("a pod with a field that does not exist: %v", err)
	}
	root := objects(t, mustRender(t, with("podSecurityContext", map[string]any{"runAsUser": 0, "runAsNonRoot": false})).Documents)["StatefulSet meshrelay"]
	if err := c.create(podAndClaims(root)[1], true); err == nil || !strings.Contains(err.Error(), "restricted") {
		t.Errorf("a pod that runs as root: %v", err)
	}
	monitor := objects(t, mustRender(t, all["everything"]).Documents)["ServiceMonitor relay-hub"]
	monitor["spec"].(object)["endpoint"] = "http-admin"
	if err := c.create(monitor, true); err == nil || !strings.Contains(err.Error(), "endpoint") {
		t.Errorf("a ServiceMonitor with a field that does not exist: %v", err)
	}
}

func installUpgradeUninstall(t *testing.T, c *cluster) {
	before := c.inventory()
	values := examples(t)["everything"]
	if err := c.install(values, nil); err != nil {
		t.Fatal(err)
	}
	wanted := objects(t, mustRender(t, values).Documents)
	for key, o := range wanted {
		if _, err := c.get(o); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	set := wanted["StatefulSet relay-hub"]
	claims := slices.DeleteFunc(podAndClaims(set), func(o object) bool { return o["kind"] == "Pod" })
	for _, o := range claims {
		if err := c.create(o, false); err != nil {
			t.Fatal(err)
		}
	}
	installed := c.inventory()

	// A new config is no new pod.
	template := func() any {
		t.Helper()
		have, err := c.get(set)
		if err != nil {
			t.Fatal(err)
		}
		return at(have, "spec", "template")
	}
	generation := func() any {
		t.Helper()
		have, err := c.get(set)
		if err != nil {
			t.Fatal(err)
		}
		return at(have, "metadata", "generation")
	}
	first := generation()
	values["config"].(map[string]any)["provenance"] = map[string]any{"relay": "other"}
	if err := c.upgrade(values); err != nil {
		t.Fatal(err)
	}
	if now := generation(); now != first {
		t.Errorf("a new config changes the StatefulSet: generation %v after %v", now, first)
	}
	config, err := c.get(wanted["ConfigMap relay-hub"])
	if text, _ := at(config, "data", "relay.yaml").(string); err != nil || !strings.Contains(text, "relay: other") {
		t.Errorf("the config after the upgrade: %v, %v", text, err)
	}

	values["replicas"], values["image"] = 1, map[string]any{"repository": "registry.example/relay", "tag": "v0.3.0"}
	if err := c.upgrade(values); err != nil {
		t.Fatal(err)
	}
	if image := at(template(), "spec", "containers", 0, "image"); image != "registry.example/relay:v0.3.0" {
		t.Errorf("the image after the upgrade: %v", image)
	}
	have, err := c.get(set)
	if err != nil || at(have, "spec", "replicas") != int64(1) {
		t.Errorf("replicas after the upgrade: %v, %v", at(have, "spec", "replicas"), err)
	}
	without := slices.DeleteFunc(slices.Clone(installed), func(o string) bool {
		return strings.Contains(o, " PodDisruptionBudget ") || strings.Contains(o, " sh.helm.release")
	})
	now := slices.DeleteFunc(c.inventory(), func(o string) bool { return strings.Contains(o, " sh.helm.release") })
	if !slices.Equal(now, without) {
		t.Errorf("objects after the upgrade to one replica:\n%s\nwant\n%s", strings.Join(now, "\n"), strings.Join(without, "\n"))
	}

	// What can not be changed is refused by name, and the release goes on.
	values["storage"] = map[string]any{"size": "20Gi"}
	if err := c.upgrade(values); err == nil || !strings.Contains(err.Error(), "StatefulSet") {
		t.Errorf("another size of the volumes: %v", err)
	}

	if err := c.uninstall(); err != nil {
		t.Fatal(err)
	}
	left := slices.DeleteFunc(c.inventory(), func(o string) bool { return slices.Contains(before, o) })
	if want := []string{"istio-system PersistentVolumeClaim state-relay-hub-0"}; !slices.Equal(left, want) {
		t.Errorf("after uninstall there is %q, want %q", left, want)
	}
}

// takeOver is the step of deploy/README.md from plain manifests to the chart.
func takeOver(t *testing.T, c *cluster) {
	for key, o := range objects(t, mustRender(t, with("config.provenance.relay", "hub")).Documents) {
		if err := c.create(o, false); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
	}
	values := with("config.provenance.relay", "hub")
	values["replicas"] = 3
	if err := c.install(values, nil); err == nil || !strings.Contains(err.Error(), "meta.helm.sh/release-name") {
		t.Errorf("an installation over objects of others: %v", err)
	}
	if err := c.install(values, func(in *action.Install) { in.TakeOwnership, in.ForceConflicts = true, true }); err != nil {
		t.Fatal(err)
	}
	set, err := c.get(object{"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": object{"name": "meshrelay"}})
	if err != nil || at(set, "spec", "replicas") != int64(3) {
		t.Errorf("replicas %v, %v", at(set, "spec", "replicas"), err)
	}
	if by := at(set, "metadata", "annotations", "meta.helm.sh/release-name"); by != "meshrelay" {
		t.Errorf("the StatefulSet is of the release %v", by)
	}
	if err := c.uninstall(); err != nil {
		t.Fatal(err)
	}
}
