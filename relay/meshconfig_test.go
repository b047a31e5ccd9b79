package relay

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshrelay/config"
	"meshrelay/internal/doctor"
)

// judgedMesh returns the findings about a file with that text, one per line: level, what, why and fix.
func judgedMesh(t *testing.T, text string) (lines []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range meshConfig(file, []config.Listener{{Address: "0.0.0.0:15012"}, {Address: "[::1]:15010"}}) {
		if f.Check != "mesh" || !strings.HasPrefix(f.Target, file) || (f.Level == doctor.OK) != (f.Fix == "") {
			t.Errorf("%+v", f)
		}
		lines = append(lines, fmt.Sprint(f.Level, strings.TrimPrefix(f.Target, file), ": ", f.What, " | ", f.Why, " | ", f.Fix))
	}
	return lines
}

const goodSources = `configSources: [{address: "xds://relay.example:15010"}, {address: "k8s://"}]`

func TestDoctorFindsTheMeshConfigInEachFormThatItHas(t *testing.T) {
	block := strings.NewReplacer("[", "\n- ", "}, {", "}\n- {", "]", "\n").Replace(goodSources)
	for name, tc := range map[string]struct{ text, object string }{
		"plain":                  {text: "trustDomain: x\n" + goodSources},
		"plain, of later istiod": {text: "newField: {a: 1}\n" + block},
		"the other spelling":     {text: strings.Replace(goodSources, "configSources", "config_sources", 1)},
		"values of Helm":         {text: "global: {}\nmeshConfig: {" + goodSources + "}"},
		"JSON":                   {text: `{"configSources": [{"address": "k8s://"}, {"address": "xds://r:15010", "tlsSettings": {"mode": "SIMPLE"}}]}`},
		"ConfigMap":              {text: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio}\ndata:\n  meshNetworks: 'networks: {}'\n  mesh: |-\n    " + strings.ReplaceAll(block, "\n", "\n    "), object: " (istio)"},
		"of many objects":        {text: "kind: Service\n---\nkind: ConfigMap\nmetadata: {name: other}\ndata: {a: b}\n---\nkind: ConfigMap\nmetadata: {name: istio}\ndata: {mesh: '" + goodSources + "'}\n", object: " (istio)"},
		"a list of kubectl":      {text: "kind: List\nitems:\n- kind: ConfigMap\n  metadata: {name: istio-canary}\n  data: {mesh: '" + goodSources + "'}\n", object: " (istio-canary)"},
		"IstioOperator":          {text: "kind: IstioOperator\nmetadata: {name: in}\nspec: {meshConfig: {" + goodSources + "}}", object: " (in)"},
		"Istio of Sail":          {text: "kind: Istio\nmetadata: {name: default}\nspec: {values: {meshConfig: {" + goodSources + "}}}", object: " (default)"},
		"as relay get prints it": {text: "kind: MeshConfig\nmetadata: {name: mesh}\nspec: {" + goodSources + "}", object: " (mesh)"},
	} {
		want := fmt.Sprintf("ok%s: the istiod reads its own cluster |  | \nok%s: xds://", tc.object, tc.object)
		got := strings.Join(judgedMesh(t, tc.text), "\n")
		if !strings.HasPrefix(got, want) || !strings.HasSuffix(got, ":15010 has the port of downstream.listeners[1] |  | ") {
			t.Errorf("%s:\n%s\n%s", name, tc.text, got)
		}
	}
}

func TestDoctorJudgesTheSourcesOfAnIstiod(t *testing.T) {
	const (
		own      = "ok: the istiod reads its own cluster |  | "
		port     = "ok: xds://r:15012 has the port of downstream.listeners[0] |  | "
		alone    = `failed: configSources has xds:// without k8s:// | the istiod then does not read its own cluster (istio/istio#34134) | add to configSources: {address: "k8s://"}`
		foreign  = "warning: no address in configSources is a listener of this relay | it has %s, and this relay has the ports 15012, 15010 | correct the port in configSources, unless a Service or load balancer leads it to a port of this relay"
		without  = `warning: no address in configSources is a listener of this relay | it has no xds:// address, and this relay has the ports 15012, 15010 | add to configSources: {address: "xds://HOST:PORT"} and {address: "k8s://"}, where HOST leads the istiod to this relay`
		elsewise = "ok: configSources has no xds://; its other addresses are not checked |  | "
	)
	for sources, want := range map[string][2]string{
		`[{address: "xds://r:15012"}, {address: "k8s://"}]`:                           {own, port},
		`[{address: "k8s:///"}, {address: "XDS://r:15012"}]`:                          {own, port},
		`[{address: "xds://r:15012"}]`:                                                {alone, port},
		`[{address: "xds://r:15012"}, {address: "fs:///etc/configs"}]`:                {alone, port},
		`[{address: "xds://r:15012"}, {address: "k8s://other"}]`:                      {own, port},
		`[{address: "xds://r:15012"}, {address: "k8s://x/y"}]`:                        {alone, port}, // an istiod ignores it
		`[{address: "xds://r:15013"}, {address: "xds://s"}, {address: "k8s://"}]`:     {own, fmt.Sprintf(foreign, "xds://r:15013; xds://s")},
		`[{address: "xds://a:15013"}, {address: "xds://b:15012"}, {address: k8s://}]`: {own, strings.Replace(port, "//r", "//b", 1)},
		`[{address: "fs:///etc/configs"}]`:                                            {elsewise, without},
		`[]`:                                                                          {own, without},
	} {
		if got := judgedMesh(t, "configSources: "+sources); len(got) != 2 || [2]string(got) != want {
			t.Errorf("%s:\n%s\nwant\n%s", sources, strings.Join(got, "\n"), strings.Join(want[:], "\n"))
		}
	}
}

func TestDoctorTellsWhyAMeshConfigCanNotBeUsed(t *testing.T) {
	const unreadable = "the mesh config can not be read"
	for name, tc := range map[string]struct{ text, what, fix string }{
		"empty":                   {"", unreadable + " | this is not a mesh config", "get configmap istio -o yaml"},
		"no YAML":                 {"a: b\n\tc: d", unreadable + " | line 2: it is not YAML: the line begins with a tab", "get configmap istio"},
		"no YAML in a ConfigMap":  {"kind: ConfigMap\nmetadata: {name: istio}\ndata: {mesh: '{'}", unreadable + " | ConfigMap istio: mesh: line 1: it is not YAML", "get configmap istio"},
		"a list":                  {"- a", unreadable + " | this is not a mesh config", "get configmap istio"},
		"a list in a ConfigMap":   {"kind: ConfigMap\nmetadata: {name: istio}\ndata: {mesh: '[a]'}", unreadable + " | ConfigMap istio: this is not a mesh config", "get configmap istio"},
		"another object":          {"kind: ConfigMap\nmetadata: {name: x}\ndata: {a: b}", unreadable + " | this is not a mesh config", "get configmap istio"},
		"no list of sources":      {"configSources: {address: k8s://}", unreadable + " | configSources must be a list", "get configmap istio"},
		"no address":              {"configSources: [k8s://]", unreadable + " | configSources must be a list", "get configmap istio"},
		"no URL":                  {`configSources: [{address: "xds://r:port"}]`, "an address in configSources is no URL | parse", "xds://HOST:PORT"},
		"too large":               {strings.Repeat("# comment\n", maxMeshFile/10+1), unreadable + " | ", "mesh.yaml is larger than 4096 KiB"},
		"too many":                {strings.Repeat("---\nconfigSources: []\n", maxMeshes+1), unreadable + " | the file has more than 20 mesh configs", "get configmap istio"},
		"too many values":         {bomb, unreadable + " | it has more than 100000 values after aliases are replaced", "get configmap istio"},
		"too many in a ConfigMap": {"kind: ConfigMap\ndata:\n  mesh: |\n    " + strings.ReplaceAll(bomb, "\n", "\n    "), unreadable + " | mesh: it has more than 100000 values", "get configmap istio"},
	} {
		got := judgedMesh(t, tc.text)
		if len(got) != 1 || !strings.HasPrefix(got[0], "failed: "+tc.what) || !strings.Contains(got[0], tc.fix) {
			t.Errorf("%s: %q", name, got)
		}
	}
	found := meshConfig(filepath.Join(t.TempDir(), "none"), nil)
	if len(found) != 1 || found[0].Level != doctor.Failed || !strings.Contains(found[0].Why, "no such file") {
		t.Errorf("%+v", found)
	}
}

// bomb is a short text with many values, because of its aliases.
var bomb = func() string {
	text := "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
	for i := range 6 {
		text += fmt.Sprintf("a%d: &a%d [%s*a%d]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d,", i), 9), i)
	}
	return text
}()
