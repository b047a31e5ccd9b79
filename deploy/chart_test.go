package deploy_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"meshrelay/config"
	"meshrelay/downstream"
	"meshrelay/relay"
)

// TestEveryExampleOfTheChartHasAConfigThatTheRelayTakes reads what the chart makes of its example
// values. (tools/chart keeps these renderings up to date, and the kustomizations equal to them.) The
// config is valid, its ports are those of the objects, and its files are mounted.
func TestEveryExampleOfTheChartHasAConfigThatTheRelayTakes(t *testing.T) {
	examples, err := filepath.Glob("chart/ci/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("examples %q, %v", examples, err)
	}
	for _, example := range examples {
		t.Run(strings.TrimSuffix(filepath.Base(example), ".yaml"), func(t *testing.T) {
			checkExample(t, manifests(t, "../tools/chart/testdata/rendered/"+filepath.Base(example)))
		})
	}
}

func checkExample(t *testing.T, all map[string]manifest) {
	var text string
	var set manifest
	var services []manifest
	for _, m := range all {
		switch m.Kind {
		case "ConfigMap":
			text = strings.Replace(m.Data["relay.yaml"], placeholder, "hub", 1)
		case "StatefulSet":
			set = m
		case "Service":
			services = append(services, m)
		}
	}
	if text == "" && len(services) == 0 && all["ClusterRole relay-reader"].Kind != "" {
		return // no relay, but what one elsewhere reads with
	}
	cfg, err := config.Parse("relay.yaml", []byte(text), relay.Sources()...)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	var want []int
	for _, l := range cfg.Downstream.Listeners {
		if !strings.HasPrefix(l.Address, "127.") {
			want = append(want, port(t, l.Address))
		}
	}
	xds, http := slices.Clone(want), port(t, cfg.Admin.Address)
	c := set.Spec.Template.Spec.Containers[0]
	named := map[string]int{}
	var have []int
	for _, p := range c.Ports {
		named[p.Name] = p.ContainerPort
		have = append(have, p.ContainerPort)
	}
	want = append(want, http)
	if !slices.Equal(have, want) {
		t.Errorf("the container has the ports %v, the config %v", have, want)
	}
	if len(services) != 2 {
		t.Errorf("%d Services", len(services))
	}
	for _, s := range services {
		var leads []int
		for _, p := range s.Spec.Ports {
			leads = append(leads, named[p.TargetPort])
		}
		if headless := s.Spec.ClusterIP == "None"; headless && !slices.Equal(leads, want) || !headless && !slices.Equal(leads, xds) {
			t.Errorf("the Service %s leads to %v, the config has %v", s.Metadata.Name, leads, want)
		}
	}
	if given := set.Spec.Template.Spec.TerminationGracePeriodSeconds; float64(given) <= downstream.DrainTimeout.Seconds() {
		t.Errorf("Kubernetes waits %d s, draining takes up to %v", given, downstream.DrainTimeout)
	}
	paths := regexp.MustCompile(`/(etc/relay-files|var/run/secrets)/[^\s"',}\]]+`).FindAllString(text, -1)
	for _, path := range append(paths, cfg.State.Dir) {
		if !slices.ContainsFunc(c.VolumeMounts, func(m volumeMount) bool { return strings.HasPrefix(path, m.MountPath+"/") }) {
			t.Errorf("%s of the config is not mounted: %v", path, c.VolumeMounts)
		}
	}
}

// TestTheReadmeOfTheChartShowsAnExample: which is checked as all examples are.
func TestTheReadmeOfTheChartShowsAnExample(t *testing.T) {
	want := "```yaml\n# values.yaml\n" + string(read(t, "chart/ci/readme.yaml")) + "```"
	if !strings.Contains(string(read(t, "chart/README.md")), want) {
		t.Error("chart/README.md does not show chart/ci/readme.yaml")
	}
}
