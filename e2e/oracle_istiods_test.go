package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// oracle is an istiod that reads configs from files, and istiods that are fed the same
// configs by way of relays. What the first makes of them for Envoys is what the others have
// to make of them. They run on from set to set.
type oracle struct {
	t       *testing.T
	direct  *istiod
	fed     []fedIstiod
	proxies []proxy
	out     string // a directory for what a person needs who looks into a difference

	given   int // how often something was given
	set     []manifest
	marker  string // of the set
	cluster string // that was given after the set

	// mark, unless nil, gives the marker to sources that the istiod with the files does not have.
	mark func(filter string)
	seen map[protoreflect.FullName]int // messages that were compared, by type
}

// fedIstiod is an istiod behind a relay.
type fedIstiod struct {
	*istiod
	way   string
	lacks []string // keys of configs that the relay leaves out
}

// oracleMesh is the MeshConfig of all istiods of an oracle: what is not in the configs is
// equal.
const oracleMesh = `trustDomain: mesh.example
extensionProviders:
- name: log
  envoyFileAccessLog: {path: /dev/stdout}
- name: tracer
  zipkin: {service: www.googleapis.com, port: 80}
- name: prometheus
  prometheus: {}
- name: authz
  envoyExtAuthzHttp: {service: details.bookinfo.svc.cluster.local, port: 9080}
`

// inOracle makes an istiod that has not started like the others of the oracle.
func (i *istiod) inOracle() *istiod {
	i.t.Helper()
	b, err := os.ReadFile(i.mesh)
	if err != nil {
		i.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\n") // the first line is its own trust domain
	writeFile(i.t, i.mesh, oracleMesh+rest)
	i.args[slices.Index(i.args, "--clusterID")+1] = "oracle"
	i.env = append(i.env, "PILOT_MAX_REQUESTS_PER_SECOND=10000", "PILOT_DEBOUNCE_AFTER=20ms")
	return i
}

// newOracle starts the istiod that reads files.
func newOracle(t *testing.T, proxies ...proxy) *oracle {
	t.Helper()
	o := &oracle{t: t, proxies: proxies, out: filepath.Join("out", "oracle", t.Name()), seen: map[protoreflect.FullName]int{}}
	if err := os.RemoveAll(o.out); err != nil {
		t.Fatal(err)
	}
	o.direct = newIstiod(t, "direct").inOracle().start().ready()
	return o
}

// feed starts an istiod that is fed by the relay, which leaves out what has the keys.
func (o *oracle) feed(way string, r *relay, lacks ...string) {
	o.t.Helper()
	i := newIstiod(o.t, strings.ReplaceAll(way, " ", "-"), r.ready().xds).inOracle().start().ready()
	o.fed = append(o.fed, fedIstiod{istiod: i, way: way, lacks: lacks})
}

// throughOneRelayAndTwo starts two relays in a row, and an istiod behind each.
func (o *oracle) throughOneRelayAndTwo() *oracle {
	o.t.Helper()
	near := oracleRelay(o.t, "near", o.direct.grpc)
	far := oracleRelay(o.t, "far", near.xds)
	o.feed("one relay", near)
	o.feed("two relays", far)
	return o
}

// oracleRelay starts a relay that passes on all that its upstream has, deletions in bulk
// included, and within a second what an istiod does not push. lines are further lines of the
// upstream.
func oracleRelay(t *testing.T, name, upstream string, lines ...string) *relay {
	t.Helper()
	config := fmt.Sprintf(`upstreams:
- name: source
  xds: {addresses: [%q], plaintext: true, resyncInterval: 1s}
  guard: {percent: 100}
`, upstream)
	for _, line := range lines {
		config += "  " + line + "\n"
	}
	return newRelayOf(t, name, config).start()
}

func (o *oracle) istiods() []*istiod {
	all := []*istiod{o.direct}
	for _, f := range o.fed {
		all = append(all, f.istiod)
	}
	return all
}

// give gives the configs of a set to all istiods. It returns when what they make of them for
// Envoys is made of exactly these.
func (o *oracle) give(name string, set []manifest) error {
	o.t.Helper()
	o.given++
	set = applied(set)
	o.set, o.marker = set, fmt.Sprintf("%s-%d", name, o.given)
	doc, err := document(set, o.marker)
	if err != nil {
		return err
	}
	writeFile(o.t, filepath.Join(o.direct.configDir, "set.yaml"), doc)
	return o.arrived()
}

// arrived waits until each istiod has the set, and has then made a push of something that
// came after it.
func (o *oracle) arrived() error {
	o.t.Helper()
	lacks := map[*istiod][]string{}
	for _, f := range o.fed {
		lacks[f.istiod] = f.lacks
	}
	for _, i := range o.istiods() {
		if err := within(func() error { return i.holds(o.set, o.marker, lacks[i]) }); err != nil {
			return fmt.Errorf("istiod %s: %w", i.name, err)
		}
	}
	o.given++
	o.cluster = fmt.Sprintf("oracle-%d", o.given)
	writeFile(o.t, filepath.Join(o.direct.configDir, "marker.yaml"), markerFilter(o.cluster))
	if o.mark != nil {
		o.mark(markerFilter(o.cluster))
	}
	for _, i := range o.istiods() {
		client := dial(o.t, i.grpc)
		err := within(func() error {
			config, err := client.fetch(o.proxies[0])
			if err == nil && config[cdsType][o.cluster] == nil {
				err = errors.New("not yet")
			}
			return err
		})
		client.conn.Close()
		if err != nil {
			return fmt.Errorf("istiod %s does not push what it has: %w", i.name, err)
		}
	}
	return nil
}

// applied returns what all istiods of a run apply: the newest knows no WasmPlugin but those of its own API server.
func applied(set []manifest) []manifest {
	return slices.DeleteFunc(slices.Clone(set), func(m manifest) bool { return allNewest() && m.Kind == "WasmPlugin" })
}

// holds returns nil when the istiod has all configs of the set as they are in this set, and
// no others but the oracle's own.
func (i *istiod) holds(set []manifest, marker string, lacks []string) error {
	if !i.alive() {
		return errors.New("it has ended")
	}
	body, err := httpGet("http://" + i.http + "/debug/configz")
	if err != nil {
		return err
	}
	var objects []struct {
		object
		Metadata manifestMetadata `json:"metadata"`
	}
	if err := json.Unmarshal(body, &objects); err != nil {
		return err
	}
	have := map[string]manifestMetadata{}
	for _, o := range objects {
		m := manifest{APIVersion: o.APIVersion, Kind: o.Kind, Metadata: o.Metadata}
		have[m.key()] = o.Metadata
	}
	delete(have, markerFilterKey)
	var missing []string
	for _, m := range set {
		switch h, ok := have[m.key()]; {
		case slices.Contains(lacks, m.key()):
			if ok {
				return fmt.Errorf("%s was to be left out", m.key())
			}
		case h.Annotations[markerKey] != marker:
			missing = append(missing, m.key())
		case h.CreationTimestamp != m.Metadata.CreationTimestamp:
			return fmt.Errorf("%s was created at %s, want %s", m.key(), h.CreationTimestamp, m.Metadata.CreationTimestamp)
		}
		delete(have, m.key())
	}
	if len(missing) > 0 || len(have) > 0 {
		return fmt.Errorf("missing or old are %d: %.300q; too much are %d", len(missing), missing, len(have))
	}
	return nil
}

// markerKey is the annotation that tells the set that a config is of. As it is Istio's by its
// name, an istiod pushes a config in which nothing but this has changed.
const markerKey = "oracle.istio.io/set"

const markerFilterKey = "networking.istio.io/EnvoyFilter istio-system/oracle-marker"

// markerFilter gives every proxy a cluster of that name.
func markerFilter(cluster string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata:
  name: oracle-marker
  namespace: istio-system
  creationTimestamp: "2024-01-01T00:00:00Z"
spec:
  configPatches:
  - applyTo: CLUSTER
    match: {context: ANY}
    patch:
      operation: ADD
      value: {name: %s, type: STATIC, connect_timeout: 1s}
`, cluster)
}
