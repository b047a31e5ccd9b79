package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestTheSchemaKnowsEveryValue: each key of values.yaml is a property, and each property has a default.
func TestTheSchemaKnowsEveryValue(t *testing.T) {
	var schema any
	if err := json.Unmarshal(read(t, "../../deploy/chart/values.schema.json"), &schema); err != nil {
		t.Fatal(err)
	}
	compareKeys(t, "", decode(t, read(t, "../../deploy/chart/values.yaml")), schema)
}

func compareKeys(t *testing.T, path string, values map[string]any, schema any) {
	t.Helper()
	properties, closed := at(schema, "properties").(object)
	if !closed {
		return // an object of Kubernetes, the config, or a map
	}
	if at(schema, "additionalProperties") != false && path != "labels." {
		t.Errorf("the schema lets unknown values pass in %q", path)
	}
	for key, v := range values {
		if properties[key] == nil {
			t.Errorf("values.yaml has %s%s, the schema has not", path, key)
		}
		if inner, ok := v.(map[string]any); ok {
			compareKeys(t, path+key+".", inner, properties[key])
		}
	}
	for key, property := range properties {
		if _, there := values[key]; !there && path != "resources." && property != false {
			t.Errorf("the schema has %s%s, values.yaml has not", path, key)
		}
	}
}

// with returns values with one of them, whose name has points.
func with(path string, value any) map[string]any {
	key, rest, deeper := strings.Cut(path, ".")
	if deeper {
		return map[string]any{key: with(rest, value)}
	}
	return map[string]any{key: value}
}

func TestWrongValuesAreRefusedByName(t *testing.T) {
	for _, tc := range []struct {
		value string
		wrong any
		want  []string
	}{
		{"replcas", 3, []string{"replcas"}},
		{"image.tga", "v1", []string{"/image", "tga"}},
		{"rbac.hub.namespace", "fleet", []string{"/rbac/hub", "namespace"}},
		{"replicas", "3", []string{"/replicas", "integer"}},
		{"replicas", -1, []string{"/replicas"}},
		{"name", "Relay_Hub", []string{"/name"}},
		{"image.digest", "sha256:1234", []string{"/image/digest"}},
		{"image.pullPolicy", "always", []string{"/image/pullPolicy", "Always"}},
		{"config", "upstreams: []", []string{"/config", "object"}},
		{"configFile", map[string]any{"upstreams": []any{}}, []string{"/configFile", "string"}},
		{"files", []any{map[string]any{"name": "a"}}, []string{"/files/0", "secret"}},
		{"files", []any{map[string]any{"name": "a", "secret": "s", "configMap": "c"}}, []string{"/files/0"}},
		{"files", []any{map[string]any{"name": "a/../b", "secret": "s"}}, []string{"/files/0/name"}},
		{"env", map[string]any{"POD_IP": "1.2.3.4"}, []string{"/env/POD_IP"}},
		{"env", map[string]any{"GOMEMLIMIT": 900000000}, []string{"/env/GOMEMLIMIT", "string"}}, // Helm would print 9e+08
		{"resources.limit", map[string]any{"memory": "1Gi"}, []string{"/resources", "limit"}},
		{"storage.size", "1 GB", []string{"/storage/size"}},
		{"labels", map[string]any{"app": "other"}, []string{"/labels/app"}},
		{"service.type", "ExternalName", []string{"/service/type"}},
		{"disruptionBudget.minAvailable", "half", []string{"/disruptionBudget/minAvailable"}},
		{"token.expirationSeconds", 60, []string{"/token/expirationSeconds"}},
		{"serviceMonitor.interval", 30, []string{"/serviceMonitor/interval", "string"}},
		{"topologySpreadConstraints", []any{map[string]any{"maxSkew": 1}}, []string{"/topologySpreadConstraints/0", "topologyKey"}},
	} {
		_, err := render(t.Context(), repository, with(tc.value, tc.wrong))
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v: error %v, want %q in it", tc.value, tc.wrong, err, want)
			}
		}
	}
}

// TestValuesThatDoNotFitAreRefused: the kubelet would restart a relay that nobody reaches for ever.
func TestValuesThatDoNotFitAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		values map[string]any
		want   string
	}{
		"admin on loopback":    {with("config.admin.address", "127.0.0.1:15014"), "config.admin.address"},
		"default admin":        {with("config.admin", nil), "config.admin.address"},
		"no listener":          {with("config.downstream.listeners", []any{}), "config.downstream.listeners"},
		"listener on loopback": {with("config.downstream.listeners", []any{map[string]any{"address": "localhost:15010"}}), "config.downstream.listeners"},
		"a file of no YAML":    {with("configFile", "a: [b"), "configFile"},
		"a name that is taken": {with("name", "relay"), "service.name"},
		"a budget of all":      {with("disruptionBudget.minAvailable", 2), "disruptionBudget.minAvailable"},
		"a budget of all, too": {with("disruptionBudget.minAvailable", "100%"), "disruptionBudget.minAvailable"},
	} {
		if _, err := render(t.Context(), repository, tc.values); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
	}
}
