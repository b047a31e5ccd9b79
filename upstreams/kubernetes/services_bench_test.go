package kubernetes

import (
	"fmt"
	"strings"
	"testing"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/discovery"
	"meshrelay/upstreams/kubernetes/object"
)

// podEventOf is a pod with a sidecar as clusters send it: most of it is not read. restarts is a part of its status.
func podEventOf(restarts int) string {
	managed := strings.Repeat(`{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{},"f:dnsPolicy":{}}},"manager":"kubelet","operation":"Update","time":"2026-01-01T00:00:00Z"},`, 5)
	env := strings.TrimSuffix(strings.Repeat(`{"name":"SETTING","value":"value-of-setting"},`, 14), ",")
	container := `{"name":"app","image":"registry.example.com/app:1.2.3","ports":[{"name":"http","containerPort":8080,"protocol":"TCP"}],"env":[` + env + `],"resources":{"requests":{"cpu":"100m"}},"readinessProbe":{"httpGet":{"path":"/healthz","port":8080},"periodSeconds":10},"volumeMounts":[{"name":"token","mountPath":"/var/run/secrets"}]}`
	condition := strings.TrimSuffix(strings.Repeat(`{"type":"Ready","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:00:00Z"},`, 5), ",")
	state := fmt.Sprintf(`{"name":"app","image":"registry.example.com/app:1.2.3","imageID":"registry.example.com/app@sha256:%064d","ready":true,"restartCount":%d,"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}`, 1, restarts)
	return fmt.Sprintf(`{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"db-7d9c8b6f5d-00001","namespace":"shop","uid":"u","resourceVersion":"7","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"app":"db","version":"v1","pod-template-hash":"7d9c8b6f5d","security.istio.io/tlsMode":"istio"},"annotations":{"prometheus.io/port":"15020"},"managedFields":[%s]},"spec":{"nodeName":"n1","serviceAccountName":"db","containers":[%s,%s]},"status":{"phase":"Running","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}],"conditions":[%s],"containerStatuses":[%s,%s]}}}`+"\n",
		strings.TrimSuffix(managed, ","), container, container, condition, state, state)
}

// discovering returns the collection of a kind of an upstream that discovers services.
func discovering(kind mirror.Kind) *collection {
	cfg := configOf()
	cfg.Services.Mode = config.ServicesDiscover
	s := New(cfg, envOf())
	s.prepare(&script{})
	return s.newCollections(discovery.Resource{Kind: kind, Version: "v1"})[0]
}

func decodePodEvent(tb testing.TB, d *object.Decoder) *object.Object {
	_, o, err := d.Decode()
	if err != nil {
		tb.Fatal(err)
	}
	return o.(*object.Object)
}

// TestAStatusOfAPodCostsOneDecode_K15: what a write of a status costs in addition to decoding does not depend on the size of
// the pod, and tells the intake nothing.
func TestAStatusOfAPodCostsOneDecode_K15(t *testing.T) {
	c := discovering(podKind)
	feed := c.source.feed.(*script)
	for kind := range serviceInputs {
		if kind != podKind {
			c.source.newCollections(discovery.Resource{Kind: kind, Version: "v1"})[0].Replace(nil)
		}
	}
	c.Replace([]*object.Object{preparedPod(t, c, 0)})
	feed.take()
	statuses := make([]*object.Object, 101)
	for i := range statuses {
		statuses[i] = preparedPod(t, c, i+1)
	}
	next := 0
	if n := testing.AllocsPerRun(len(statuses)-1, func() { c.Put(statuses[next]); next++ }); n > 12 {
		t.Errorf("a status costs %v allocations after it was decoded", n)
	}
	for _, e := range feed.take() {
		if r, is := e.(intake.Received); !is || len(r.Updates) > 0 {
			t.Errorf("a status tells the intake %+v", e)
		}
	}
}

func preparedPod(tb testing.TB, c *collection, restarts int) *object.Object {
	d := decoderOf(podEventOf(restarts))
	d.Prepare = c.Prepare
	return decodePodEvent(tb, d)
}

func BenchmarkReadPod(b *testing.B) {
	c, text := discovering(podKind), podEventOf(1)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		preparedPod(b, c, 1)
	}
}

func BenchmarkStatusOfPod(b *testing.B) {
	c := discovering(podKind)
	c.Replace([]*object.Object{preparedPod(b, c, 0)})
	o := preparedPod(b, c, 1)
	b.ReportAllocs()
	for b.Loop() {
		one := *o
		c.Put(&one)
	}
}
