// Package deploy_test checks that what is deployed is what the relay takes.
package deploy_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
	"github.com/hashicorp/go-multierror"

	"meshrelay/config"
	"meshrelay/downstream"
	"meshrelay/relay"
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
	Metadata   struct{ Name, Namespace string }
	Data       map[string]string
	Spec       struct {
		Selector            map[string]any // of labels, or with matchLabels
		PodSelector         map[string]any `yaml:"podSelector"`         // of the NetworkPolicy
		ServiceName         string         `yaml:"serviceName"`         // of the StatefulSet
		PodManagementPolicy string         `yaml:"podManagementPolicy"` // of the StatefulSet
		ClusterIP           string         `yaml:"clusterIP"`
		PublishNotReady     bool           `yaml:"publishNotReadyAddresses"`
		Ports               []struct {     // of the Service
			TargetPort string `yaml:"targetPort"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     podSpec
		}
		VolumeClaimTemplates []struct {
			Metadata struct{ Name string }
		} `yaml:"volumeClaimTemplates"`
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
		VolumeMounts []volumeMount `yaml:"volumeMounts"`
		Ports        []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		ReadinessProbe probe `yaml:"readinessProbe"`
		LivenessProbe  probe `yaml:"livenessProbe"`
	}
}

type volumeMount struct {
	Name      string
	MountPath string `yaml:"mountPath"`
	ReadOnly  bool   `yaml:"readOnly"`
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

// manifests returns the objects of a file by kind and name.
func manifests(t *testing.T, path string) map[string]manifest {
	t.Helper()
	file, err := parser.ParseBytes(read(t, path), 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]manifest{}
	for _, doc := range file.Docs {
		var m manifest
		if err := yaml.NodeToValue(doc.Body, &m); err != nil {
			t.Fatal(err)
		}
		key := m.Kind + " " + m.Metadata.Name
		if in := m.Metadata.Namespace; in != "" && in != "istio-system" {
			key += " in " + in
		}
		if _, twice := all[key]; twice || m.APIVersion == "" {
			t.Errorf("%s: apiVersion %q, there twice: %v", key, m.APIVersion, twice)
		}
		all[key] = m
	}
	return all
}

// replicas are the objects of relay.yaml.
func replicas(t *testing.T) map[string]manifest { return manifests(t, "kubernetes/relay.yaml") }

func TestEveryObjectIsThere(t *testing.T) {
	got := slices.Sorted(maps.Keys(replicas(t)))
	want := []string{
		"ConfigMap meshrelay", "NetworkPolicy relay", "PodDisruptionBudget relay", "Role relay-replicas",
		"RoleBinding relay-replicas", "Service meshrelay", "Service relay",
		"ServiceAccount relay", "StatefulSet meshrelay",
	}
	if !slices.Equal(got, want) {
		t.Errorf("objects %q, want %q", got, want)
	}
}

const placeholder = "<NAME OF THIS RELAY>"

func configText(t *testing.T) string {
	t.Helper()
	return replicas(t)["ConfigMap meshrelay"].Data["relay.yaml"]
}

// relayConfig returns the config of the ConfigMap, with a name for the relay.
func relayConfig(t *testing.T) *config.Config {
	t.Helper()
	cfg, err := config.Parse("relay.yaml", []byte(strings.Replace(configText(t), placeholder, "hub", 1)), relay.Sources()...)
	if err != nil {
		t.Fatalf("the config in the ConfigMap: %v", err)
	}
	return cfg
}

// TestTheNameOfTheRelayHasToBeChosen: with the placeholder, the only mistake is that it is
// there still.
func TestTheNameOfTheRelayHasToBeChosen(t *testing.T) {
	text := configText(t)
	before, _, found := strings.Cut(text, placeholder)
	if !found {
		t.Fatalf("the config has no %s", placeholder)
	}
	_, err := config.Parse("relay.yaml", []byte(text), relay.Sources()...)
	var many *multierror.Error
	if !errors.As(err, &many) || len(many.Errors) != 1 {
		t.Fatalf("error %v, want one mistake", err)
	}
	want := fmt.Sprintf("relay.yaml:%d: provenance.relay: %q is a placeholder: ", strings.Count(before, "\n")+1, placeholder)
	if got := many.Errors[0].Error(); !strings.HasPrefix(got, want) {
		t.Errorf("%q, want %q and what to do", got, want)
	}
	if got := relayConfig(t).Provenance.Relay; got != "hub" {
		t.Errorf("the relay is called %q, want the name that was put there", got)
	}
}

// labelsOf returns the labels that a selector asks for.
func labelsOf(selector map[string]any) map[string]string {
	if inner, ok := selector["matchLabels"].(map[string]any); ok {
		selector = inner
	}
	out := map[string]string{}
	for key, value := range selector {
		out[key], _ = value.(string)
	}
	return out
}

// TestEveryReplicaHasItsOwnVolumeAndName: a replica that waits for its upstreams also keeps no
// other from starting.
func TestEveryReplicaHasItsOwnVolumeAndName(t *testing.T) {
	all := replicas(t)
	set := all["StatefulSet meshrelay"].Spec
	if set.PodManagementPolicy != "Parallel" {
		t.Errorf("podManagementPolicy %q: a replica that is not ready keeps the next from starting", set.PodManagementPolicy)
	}
	if c := set.VolumeClaimTemplates; len(c) != 1 || c[0].Metadata.Name != "state" {
		t.Errorf("volumeClaimTemplates %v", c)
	}
	names := all["Service "+set.ServiceName].Spec
	if names.ClusterIP != "None" || !names.PublishNotReady || !maps.Equal(labelsOf(names.Selector), labelsOf(set.Selector)) {
		t.Errorf("the Service of the names: %+v", names)
	}
	if clients := all["Service relay"].Spec; clients.PublishNotReady || clients.ClusterIP != "" {
		t.Errorf("the Service for clients: %+v", clients)
	}
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
	cfg, all := relayConfig(t), replicas(t)
	c := all["StatefulSet meshrelay"].Spec.Template.Spec.Containers[0]
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
	if got := all["Service relay"].Spec.Ports; len(got) != 1 || named[got[0].TargetPort] != xds {
		t.Errorf("the Service leads to %v, the listener's port is %d", got, xds)
	}
	var open []int
	for _, rule := range all["NetworkPolicy relay"].Spec.Ingress {
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
	const drain = downstream.DrainTimeout
	given := replicas(t)["StatefulSet meshrelay"].Spec.Template.Spec.TerminationGracePeriodSeconds
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
	cfg, set := relayConfig(t), replicas(t)["StatefulSet meshrelay"].Spec
	pod := set.Template.Spec
	c := pod.Containers[0]
	if !c.SecurityContext.ReadOnlyRootFilesystem {
		t.Error("the root file system can be written to")
	}
	writable := func(path string) (mount string) {
		for _, m := range c.VolumeMounts {
			if !m.ReadOnly && (path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/")) {
				for _, v := range set.VolumeClaimTemplates {
					if v.Metadata.Name == m.Name {
						return m.MountPath
					}
				}
				for _, v := range pod.Volumes {
					if v.Name == m.Name && v.EmptyDir != nil {
						return m.MountPath
					}
				}
			}
		}
		return ""
	}
	for _, path := range []string{cfg.State.Dir, cfg.AdminSocket()} {
		if writable(path) == "" {
			t.Errorf("%s can not be written to", path)
		}
	}
	if m := writable(cfg.State.Dir); !slices.ContainsFunc(c.VolumeMounts, func(v volumeMount) bool { return v.MountPath == m && v.Name == "state" }) {
		t.Errorf("state.dir %s is not on the volume of the replica", cfg.State.Dir)
	}
	// The kubelet makes the root of a volume group-writable, and with its default policy, at
	// each mount, all that is in it.
	if dir := cfg.State.Dir; writable(dir) == dir || cfg.AdminSocket() != dir+"/admin.sock" {
		t.Errorf("state.dir %s is the root of a volume, or is not where the socket is: %s", dir, cfg.AdminSocket())
	}
	if s := pod.SecurityContext; s.FSGroup == 0 || s.FSGroupChangePolicy != "OnRootMismatch" {
		t.Errorf("the volume's group: %+v", s)
	}
}

// TestKubectlExecFindsTheRelay: the commands in the documents are of the form "kubectl exec
// meshrelay-0 -- relay status", and the image has no shell.
func TestKubectlExecFindsTheRelay(t *testing.T) {
	all := replicas(t)
	command := regexp.MustCompile(`kubectl exec (?:-n istio-system )?(\S+) -- (\w+)`)
	found := 0
	for _, pattern := range []string{"../*.md", "*.md", "../docs/*.md", "../examples/*/*.md", "../cmd/relay/*.go"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %q, %v", pattern, paths, err)
		}
		for _, path := range paths {
			for _, m := range command.FindAllStringSubmatch(string(read(t, path)), -1) {
				found++
				set, _, numbered := strings.Cut(m[1], "-")
				_, exists := all["StatefulSet "+set]
				if !numbered || !exists || m[2] != "relay" {
					t.Errorf("%s: %q: want the name of a replica, and relay", path, m[0])
				}
			}
		}
	}
	if found < 5 {
		t.Errorf("%d commands found", found)
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
	if _, err := config.Parse("relay.yaml", m[1], relay.Sources()...); err != nil {
		t.Error(err)
	}
}
