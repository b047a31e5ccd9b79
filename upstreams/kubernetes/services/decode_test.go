package services

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"meshrelay/upstreams/kubernetes/object"
)

// decodeText decodes an object as a source does. text is JSON without kind, name and namespace.
func decodeText(in Input, name, text string) (object.Input, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &fields); err != nil || fields == nil {
		return nil, fmt.Errorf("no object: %w", err)
	}
	var metadata map[string]json.RawMessage
	if err := json.Unmarshal(fields["metadata"], &metadata); err != nil || metadata == nil {
		metadata = map[string]json.RawMessage{}
	}
	namespace, name, _ := strings.Cut(name, "/")
	metadata["name"], metadata["namespace"] = quoted(name), quoted(namespace)
	fields["metadata"] = quoted(metadata)
	d := object.NewDecoder(io.NopCloser(strings.NewReader(fmt.Sprintf(`{"type":"ADDED","object":%s}`, quoted(fields)))))
	_, o, err := d.Decode()
	if err != nil {
		return nil, err
	}
	return Decode(in, o.(*object.Object))
}

func quoted(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

func fuzz(f *testing.F, in Input, seeds ...string) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := decodeText(in, "shop/db", text)
		if err != nil {
			return
		}
		if d.Size() < overhead {
			t.Errorf("a size of %d bytes", d.Size())
		}
		w := newWorld(t, Options{})
		w.service("shop/db", dbSpec)
		w.slice("shop/db-1", "db", target("db", "10.0.0.1"))
		w.Want(map[string]struct{}{someApp: {}, anyApp: {}})
		w.Set(d)
		w.Flush()
		for _, cluster := range []string{dbHTTP, someApp, anyApp} {
			w.Endpoints(cluster)
		}
		again, err := decodeText(in, "shop/db", text)
		if w.Set(again); err != nil || !reflect.DeepEqual(d, again) {
			t.Errorf("decoded again it is %+v, %v", again, err)
		}
		w.flushed()
		w.Remove(in, Name{"shop", "db"})
		w.Remove(Services, Name{"shop", "db"})
		w.Remove(Slices, Name{"shop", "db-1"})
		if w.Flush(); len(w.spaces) > 0 {
			t.Error("a namespace stays")
		}
	})
}

func FuzzDecodeService(f *testing.F) {
	fuzz(f, Services, `{"spec":`+dbSpec+`}`, `{"spec":{"type":"ExternalName","externalName":"a.b","ports":[{"port":53,"protocol":"UDP","targetPort":"x"}]}}`,
		`{"metadata":{"labels":{"a":"b"},"annotations":{"networking.istio.io/exportTo":".,,x"}},"spec":{"clusterIP":"None","clusterIPs":["a","b"],"ipFamilies":["IPv6"],"internalTrafficPolicy":"Local"}}`)
}

func FuzzDecodeEndpointSlice(f *testing.F) {
	fuzz(f, Slices, `{"metadata":{"labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv4","endpoints":[`+target("db", "10.0.0.1")+`],"ports":[{"name":"http","port":8080}]}`,
		`{"metadata":{"labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv6","endpoints":[{"addresses":["fe80::1%eth0",""],"conditions":{"ready":null,"terminating":true},"zone":"z"}],"ports":[{}]}`, `{"addressType":"FQDN"}`)
}

func FuzzDecodePod(f *testing.F) {
	fuzz(f, Pods, podText("10.0.0.1", `"app":"db","pod-template-hash":"x"`, ""), podText("", `"controller-revision-hash":"x","istio-locality":"a.b.c.d"`, `,"deletionTimestamp":"x"`))
}

func FuzzDecodeNode(f *testing.F) {
	fuzz(f, Nodes, `{"metadata":{"labels":{"topology.kubernetes.io/region":"eu","topology.kubernetes.io/zone":"a","topology.istio.io/subzone":"b"}}}`)
}

func FuzzDecodeWorkloadEntry(f *testing.F) {
	fuzz(f, Workloads, `{"metadata":{"labels":{"app":"db"}},"spec":{"address":"192.0.2.1","ports":{"http":80},"labels":{"a":"b"},"network":"n","locality":"a/b","weight":5,"serviceAccount":"x"}}`,
		`{"spec":{"address":"unix:///a"}}`, `{"metadata":{"annotations":{"proxy.istio.io/health-checks-enabled":"true"}},"spec":{"address":"a.b"},"status":{"conditions":[{"type":"Healthy","status":"True"}]}}`)
}

func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// load sets objects, and returns the memory that they take, and what is counted for them.
func load(tb testing.TB, s *State, n int, in Input, name func(int) string, text func(int) string) (took, counted int) {
	before := heap()
	for i := range n {
		d, err := decodeText(in, name(i), text(i))
		if err != nil {
			tb.Fatal(err)
		}
		counted += d.Size()
		s.Set(d)
	}
	return heap() - before, counted
}

// The heap is at most twice what is counted, whatever is distinct in the objects.
func TestObjectsTakeAtMostTwiceTheirCount_K15(t *testing.T) {
	name := func(i int) string { return fmt.Sprintf("shop/db-%d", i) }
	for what, tc := range map[string]struct {
		in   Input
		text func(i int) string
	}{
		"bare pods":      {Pods, func(int) string { return `{}` }},
		"labels of pods": {Pods, func(i int) string { return podText("10.0.0.1", fmt.Sprintf(`"app":"db-%d","version":"%d"`, i, i), "") }},
		"accounts": {Pods, func(i int) string {
			return strings.NewReplacer("acc", fmt.Sprint("acc", i), "n1", fmt.Sprint("n", i), "web", fmt.Sprint("web", i)).Replace(podText("10.0.0.1", "", ""))
		}},
		"bare services": {Services, func(int) string { return `{}` }},
		"many ports":    {Services, func(int) string { return `{"spec":{"ports":[` + strings.Repeat(`{"port":1},`, 100) + `{"port":2}]}}` }},
		"many selectors": {Services, func(i int) string {
			return fmt.Sprintf(`{"spec":{"selector":{"a":"%d","b":"","c":"","d":"","e":"","f":"","g":"","h":"","i":""}}}`, i)
		}},
		"labels": {Services, func(i int) string {
			return fmt.Sprintf(`{"metadata":{"labels":{"a":"%d","b":"","c":"","d":"","e":"","f":"","g":"","h":"","i":""}}}`, i)
		}},
		"exportTo": {Services, func(int) string {
			return `{"metadata":{"annotations":{"networking.istio.io/exportTo":"` + strings.Repeat(",", 100) + `"}}}`
		}},
		"addresses": {Services, func(int) string {
			return `{"spec":{"clusterIP":"a","clusterIPs":[` + strings.Repeat(`"",`, 100) + `""]}}`
		}},
		"bare slices": {Slices, func(int) string { return `{"addressType":"IPv4"}` }},
		"slices": {Slices, func(i int) string {
			return fmt.Sprintf(`{"metadata":{"labels":{"kubernetes.io/service-name":"db-%d"}},"addressType":"IPv4","endpoints":[{"addresses":["1.1.1.1"]},{"addresses":["1.1.1.1"]}]}`, i)
		}},
		"many addresses": {Slices, func(int) string {
			return `{"metadata":{"labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv6","endpoints":[{"addresses":[` + strings.Repeat(`"::",`, 100) + `"::"]}]}`
		}},
		"nodes and zones": {Slices, func(i int) string {
			return fmt.Sprintf(`{"metadata":{"labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv6","endpoints":[{"addresses":["::"],"zone":"%d","nodeName":"n%d"},{"addresses":["::"],"zone":"a%d","nodeName":"b%d"}]}`, i, i, i, i)
		}},
		"ports of slices": {Slices, func(i int) string {
			return fmt.Sprintf(`{"metadata":{"labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv6","ports":[{"name":"%d"},{"name":"b"},{"name":"c"},{"name":"d"},{"name":"e"},{"name":"f"},{"name":"g"},{"name":"h"},{"name":"i"}]}`, i)
		}},
		"nodes": {Nodes, func(i int) string {
			return fmt.Sprintf(`{"metadata":{"labels":{"topology.kubernetes.io/region":"%d","topology.kubernetes.io/zone":"a%d"}}}`, i, i)
		}},
		"workloads": {Workloads, func(i int) string {
			return fmt.Sprintf(`{"metadata":{"labels":{"a":"%d"}},"spec":{"address":"a%d","network":"n%d","locality":"l%d","ports":{"p%d":1}}}`, i, i, i, i, i)
		}},
	} {
		s := New(Options{})
		took, counted := load(t, s, 1000, tc.in, name, tc.text)
		if t.Logf("%s: %d bytes each, %d are counted", what, took/1000, counted/1000); took > 2*counted {
			t.Errorf("%s: %d bytes each, and %d are counted", what, took/1000, counted/1000)
		}
		runtime.KeepAlive(s)
	}
}

// A fifth of a large cluster: 5,000 services of 10 pods, which share their labels, and 3 slices of all of them. The large
// one takes less than 60 MiB.
func TestALargeClusterTakesLittleMemory_K15(t *testing.T) {
	s, took := New(Options{}), 0
	add := func(n int, in Input, name, text func(i int) string) {
		bytes, counted := load(t, s, n, in, name, text)
		t.Logf("%d of %s: %d bytes each, %d are counted", n, kinds[in], bytes/n, counted/n)
		took += bytes
	}
	space := func(i int) string { return fmt.Sprintf("team-%d", i%50) }
	add(1000, Services, func(i int) string { return fmt.Sprintf("%s/service-%d", space(i), i) }, func(i int) string {
		return fmt.Sprintf(`{"metadata":{"labels":{"app":"service-%d","team":"a"}},"spec":{"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1"],"ports":[{"name":"http","port":80,"protocol":"TCP","targetPort":8080}],"selector":{"app":"service-%d"}}}`, i, i)
	})
	pod := func(i, n int) string { return fmt.Sprintf("service-%d-5d8f7c9b7-%05d", i, n) }
	add(10_000, Pods, func(i int) string { return space(i/10) + "/" + pod(i/10, i%10) }, func(i int) string {
		return podText(fmt.Sprintf("10.%d.%d.1", i/250, i%250), fmt.Sprintf(`"app":"service-%d","version":"v1","pod-template-hash":"5d8f7c9b7","security.istio.io/tlsMode":"istio"`, i/10), "")
	})
	add(3000, Slices, func(i int) string { return fmt.Sprintf("%s/service-%d-%d", space(i/3), i/3, i%3) }, func(i int) string {
		var all []string
		for n := range 10 {
			all = append(all, strings.Replace(target(pod(i/3, n), fmt.Sprintf("10.%d.%d.1", i/250, n)), `"shop"`, `"`+space(i/3)+`"`, 1))
		}
		return fmt.Sprintf(`{"metadata":{"labels":{"kubernetes.io/service-name":"service-%d"}},"addressType":"IPv4","endpoints":[%s],"ports":[{"name":"http","port":8080}]}`, i/3, strings.Join(all, ","))
	})
	if t.Logf("%d KiB", took>>10); took > 60<<20/5 {
		t.Errorf("%d KiB", took>>10)
	}
	runtime.KeepAlive(s)
}
