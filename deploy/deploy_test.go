// Package deploy_test checks that what is deployed is what the relay takes.
package deploy_test

import (
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

	"meshrelay/config"
)

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// manifest is what these tests look at of a Kubernetes object.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Data       map[string]string
	Spec       struct {
		Ports []struct { // of the Service
			TargetPort string `yaml:"targetPort"`
		}
		Template struct {
			Spec podSpec
		}
		Ingress []struct { // of the NetworkPolicy
			Ports []struct{ Port int }
		}
	}
}

type podSpec struct {
	TerminationGracePeriodSeconds int `yaml:"terminationGracePeriodSeconds"`
	SecurityContext               struct {
		FSGroup             int    `yaml:"fsGroup"`
		FSGroupChangePolicy string `yaml:"fsGroupChangePolicy"`
	} `yaml:"securityContext"`
	Volumes []struct {
		Name     string
		EmptyDir map[string]string `yaml:"emptyDir"`
	}
	Containers []struct {
		SecurityContext struct {
			ReadOnlyRootFilesystem bool `yaml:"readOnlyRootFilesystem"`
		} `yaml:"securityContext"`
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
		Ports []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		ReadinessProbe probe `yaml:"readinessProbe"`
		LivenessProbe  probe `yaml:"livenessProbe"`
	}
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

func manifests(t *testing.T) map[string]manifest {
	t.Helper()
	file, err := parser.ParseBytes(read(t, "kubernetes/relay.yaml"), 0)
	if err != nil {
		t.Fatal(err)
	}
	byKind := map[string]manifest{}
	for _, doc := range file.Docs {
		var m manifest
		if err := yaml.NodeToValue(doc.Body, &m); err != nil {
			t.Fatal(err)
		}
		if m.APIVersion == "" || m.Metadata.Name != "relay" {
			t.Errorf("%s: apiVersion %q, name %q", m.Kind, m.APIVersion, m.Metadata.Name)
		}
		if _, twice := byKind[m.Kind]; twice {
			t.Errorf("two of kind %s", m.Kind)
		}
		byKind[m.Kind] = m
	}
	return byKind
}

func TestEveryKindIsThereOnce(t *testing.T) {
	got := slices.Sorted(maps.Keys(manifests(t)))
	want := []string{"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"}
	if !slices.Equal(got, want) {
		t.Errorf("kinds %v, want %v", got, want)
	}
}

// relayConfig is the config of the ConfigMap.
func relayConfig(t *testing.T) *config.Config {
	t.Helper()
	cfg, err := config.Parse("relay.yaml", []byte(manifests(t)["ConfigMap"].Data["relay.yaml"]))
	if err != nil {
		t.Fatalf("the config in the ConfigMap: %v", err)
	}
	return cfg
}

func port(t *testing.T, address string) int {
	t.Helper()
	host, p, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		t.Errorf("%s can not be reached from outside of the pod", address)
	}
	n, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPortsAreThoseOfTheConfig(t *testing.T) {
	cfg, all := relayConfig(t), manifests(t)
	c := all["Deployment"].Spec.Template.Spec.Containers[0]
	named := map[string]int{}
	for _, p := range c.Ports {
		named[p.Name] = p.ContainerPort
	}
	xds, http := port(t, cfg.Downstream.Listeners[0].Address), port(t, cfg.Admin.Address)
	if got := c.ReadinessProbe.HTTPGet; got.Path != "/ready" || named[got.Port] != http {
		t.Errorf("readiness probe %v, the admin port is %d", got, http)
	}
	if got := c.LivenessProbe.HTTPGet; got.Path != "/healthz" || named[got.Port] != http {
		t.Errorf("liveness probe %v, the admin port is %d", got, http)
	}
	if got := all["Service"].Spec.Ports; len(got) != 1 || named[got[0].TargetPort] != xds {
		t.Errorf("the Service leads to %v, the listener's port is %d", got, xds)
	}
	var open []int
	for _, rule := range all["NetworkPolicy"].Spec.Ingress {
		for _, p := range rule.Ports {
			open = append(open, p.Port)
		}
	}
	if !slices.Equal(open, []int{xds, http}) {
		t.Errorf("the NetworkPolicy opens %v, want %d and %d", open, xds, http)
	}
}

// TestThereIsTimeToDrain: who is killed while draining cuts its clients off.
func TestThereIsTimeToDrain(t *testing.T) {
	drain := relayConfig(t).Downstream.DrainTimeout.D()
	given := manifests(t)["Deployment"].Spec.Template.Spec.TerminationGracePeriodSeconds
	if d := time.Duration(given) * time.Second; d <= drain {
		t.Errorf("Kubernetes waits %v, draining takes up to %v", d, drain)
	}
	m := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)$`).FindSubmatch(read(t, "systemd/relay.service"))
	if m == nil {
		t.Fatal("the unit has no TimeoutStopSec in seconds")
	}
	if d, _ := time.ParseDuration(string(m[1]) + "s"); d <= drain {
		t.Errorf("systemd waits %v, draining takes up to %v", d, drain)
	}
}

// TestTheRelayCanWriteWhatItHasTo: the root of its file system is read-only, and a directory
// that others can write to is none for the socket.
func TestTheRelayCanWriteWhatItHasTo(t *testing.T) {
	cfg, pod := relayConfig(t), manifests(t)["Deployment"].Spec.Template.Spec
	c := pod.Containers[0]
	if !c.SecurityContext.ReadOnlyRootFilesystem {
		t.Error("the root file system can be written to")
	}
	writable := func(path string) (mount string) {
		for _, m := range c.VolumeMounts {
			if !m.ReadOnly && (path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/")) {
				for _, v := range pod.Volumes {
					if v.Name == m.Name && v.EmptyDir != nil {
						return m.MountPath
					}
				}
			}
		}
		return ""
	}
	for _, path := range []string{cfg.State.Dir, cfg.AdminSocket(), "/tmp"} {
		if writable(path) == "" {
			t.Errorf("%s can not be written to", path)
		}
	}
	// The kubelet makes the root of a volume group-writable, and with its default policy, at
	// each mount, all that is in it.
	if dir := cfg.State.Dir; writable(dir) == dir || cfg.AdminSocket() != dir+"/admin.sock" {
		t.Errorf("state.dir %s is the root of a volume, or is not where the socket is: %s", dir, cfg.AdminSocket())
	}
	if s := pod.SecurityContext; s.FSGroup == 0 || s.FSGroupChangePolicy != "OnRootMismatch" {
		t.Errorf("the volume's group: %+v", s)
	}
	if user := "USER " + strconv.Itoa(pod.SecurityContext.FSGroup) + ":"; !strings.Contains(string(read(t, "container/Dockerfile")), "\n"+user) {
		t.Errorf("the image has no %q", user)
	}
}

// TestKubectlExecFindsTheRelay: the commands in the documents are of the form "kubectl exec
// deploy/relay -- relay status", and the image has no shell.
func TestKubectlExecFindsTheRelay(t *testing.T) {
	dockerfile := string(read(t, "container/Dockerfile"))
	for _, want := range []string{"COPY --from=build /relay /usr/bin/relay\n", "ENV PATH=/usr/bin\n", `ENTRYPOINT ["/usr/bin/relay"]`} {
		if !strings.Contains(dockerfile, want) {
			t.Errorf("the Dockerfile has no %q", want)
		}
	}
}

// TestNothingStandsBetweenTheUnitAndTheRelay: what validate complains of must not keep a relay
// with a good state from starting.
func TestNothingStandsBetweenTheUnitAndTheRelay(t *testing.T) {
	for line := range strings.Lines(string(read(t, "systemd/relay.service"))) {
		if command, ok := strings.CutPrefix(line, "ExecStartPre="); ok && !strings.HasPrefix(command, "-") {
			t.Errorf("%q can keep the relay from starting", strings.TrimSpace(line))
		}
	}
}

func TestTheReadmesConfigIsValid(t *testing.T) {
	m := regexp.MustCompile("(?s)```yaml\n# relay.yaml\n(.*?)```").FindSubmatch(read(t, "../README.md"))
	if m == nil {
		t.Fatal("the README shows no config")
	}
	if _, err := config.Parse("relay.yaml", m[1]); err != nil {
		t.Error(err)
	}
}

// alerts are the alerting rules.
type alerts struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr         string
			Labels, Annotations map[string]string
		}
	}
}

func readAlerts(t *testing.T) (rules alerts) {
	t.Helper()
	if err := yaml.Unmarshal(read(t, "prometheus/alerts.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	return rules
}

// TestWhatNeedsAPersonHasAnAlert: each of these stays as it is until somebody does something,
// or has taken something from clients.
func TestWhatNeedsAPersonHasAnAlert(t *testing.T) {
	rules := readAlerts(t)
	for _, expr := range []string{
		`relay_upstream_state{state="denied"} == 1`, "relay_upstream_held_deletions > 0", "relay_upstream_frozen == 1", "relay_upstream_expired_resources > 0",
		"relay_upstream_over_limit_resources > 0", "relay_upstream_refused_resources > 0", "relay_state_healthy == 0", "relay_state_set_aside_files > 0",
		"relay_config_last_reload_successful == 0",
	} {
		found := 0
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				if r.Expr == expr {
					found++
				}
			}
		}
		if found != 1 {
			t.Errorf("%d alerts on %s", found, expr)
		}
	}
}

// TestAlertsNameMetricsThatExist: an alert on a metric or a state that does not exist
// never fires. (A test in docs holds docs/metrics.md to the code.)
func TestAlertsNameMetricsThatExist(t *testing.T) {
	doc := string(read(t, "../docs/metrics.md"))
	rules := readAlerts(t)
	metric := regexp.MustCompile(`relay_[a-z_]+`)
	label := regexp.MustCompile(`([a-z]+)="([a-z]+)"`)
	alerts := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			alerts++
			names := metric.FindAllString(r.Expr, -1)
			if len(names) == 0 || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("%s: metrics %q, labels %v, annotations %v", r.Alert, names, r.Labels, r.Annotations)
			}
			for _, name := range names {
				_, row, ok := strings.Cut(doc, "| `"+strings.TrimSuffix(name, "_bucket")+"` |")
				if !ok {
					t.Errorf("%s: no metric %s", r.Alert, name)
					continue
				}
				row, _, _ = strings.Cut(row, "\n")
				for _, l := range label.FindAllStringSubmatch(r.Expr, -1) {
					if !strings.Contains(row, l[1]) || !strings.Contains(row, l[2]) {
						t.Errorf("%s: %s has no %s", r.Alert, name, l[0])
					}
				}
			}
		}
	}
	if alerts == 0 {
		t.Error("no alerts")
	}
}
