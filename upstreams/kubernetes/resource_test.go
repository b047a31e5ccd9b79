package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zeebo/xxh3"

	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/discovery"
	"meshrelay/upstreams/kubernetes/ledger"
	"meshrelay/upstreams/kubernetes/object"
)

// eventOf is an event as clusters send it: most of it is not mirrored.
func eventOf(i int) string {
	var endpoints []string
	for n := range 13 {
		endpoints = append(endpoints, fmt.Sprintf(`{"address":"10.%d.0.%d","locality":"region-1/zone-b","serviceAccount":"backend-%02d","weight":1}`, n, i%256, n))
	}
	spec := `{"hosts":["service.example.com"],"location":"MESH_INTERNAL","resolution":"STATIC","ports":[{"name":"https","number":443,"protocol":"HTTPS"}],"endpoints":[` + strings.Join(endpoints, ",") + `]}`
	managed := strings.Repeat(`{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{".":{},"f:hosts":{},"f:endpoints":{},"f:ports":{}}},"manager":"kubectl","operation":"Update","time":"2026-01-01T00:00:00Z"},`, 7)
	applied, _ := json.Marshal(spec)
	return fmt.Sprintf(`{"type":"ADDED","object":{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":%s,"team":"a"},"creationTimestamp":"2026-01-01T00:00:00Z","generation":1,"labels":{"app":"a"},"managedFields":[%s],"name":"service-%06d","namespace":"team","resourceVersion":"%d","uid":"u"},"spec":%s,"status":{}}}`+"\n",
		applied, strings.TrimSuffix(managed, ","), i, i+1, spec)
}

func envOf() upstreams.Env { return upstreams.Env{Log: slog.New(slog.DiscardHandler)} }

func decoderOf(text string) *object.Decoder {
	return object.NewDecoder(io.NopCloser(strings.NewReader(text)))
}

// listing returns a collection of a kind, and what it feeds.
func listing(kind mirror.Kind) (*collection, *script) {
	feed := &script{held: map[string]xxh3.Uint128{}}
	s := New(configOf(), envOf())
	s.prepare(feed)
	return s.newCollections(discovery.Resource{Kind: kind, Version: "v1"})[0], feed
}

// TestWhatIsMirroredIsNotHeldTwiceWhileItIsListedAnew_K7: of an object that has not changed nothing is kept
// but its name and digest.
func TestWhatIsMirroredIsNotHeldTwiceWhileItIsListedAnew_K7(t *testing.T) {
	c, feed := listing(serviceEntry)
	read := func() *object.Object {
		d := decoderOf(eventOf(1))
		d.Prepare = c.Prepare
		_, o, err := d.Decode()
		if err != nil {
			t.Fatal(err)
		}
		return o.(*object.Object)
	}
	first := read()
	if m := first.Made; m.Err != nil || m.Resource.FullName() != "team/service-000001" {
		t.Fatal(m)
	}
	feed.held["networking.istio.io/ServiceEntry team/service-000001"] = first.Made.Digest
	again := read()
	if m := again.Made; m.Err != nil || m.Resource != nil || again.Spec != nil || again.Status != nil || again.Labels != nil || again.Annotations != nil {
		t.Errorf("it is held twice: %+v", again)
	}
	if again.Made.Digest != first.Made.Digest || again.Size() != first.Size() || again.FullName() != first.FullName() || again.ResourceVersion == "" {
		t.Errorf("it is another one: %+v", again)
	}
}

func TestWhatIsNotSelectedIsNotHeldWhileItIsListed_K7(t *testing.T) {
	c, _ := listing(serviceEntry)
	c.source.selection = ledger.NewSelection([]string{"mesh=on"})
	d := decoderOf(eventOf(1))
	d.Prepare = c.Prepare
	_, o, err := d.Decode()
	if got := o.(*object.Object); err != nil || !got.Unselected || got.Made != nil || got.Spec != nil || got.FullName() != "/*" {
		t.Errorf("%+v: %v", got, err)
	}
}

// TestAnObjectCostsFewAllocations_K7 holds what an event takes until it is a resource.
func TestAnObjectCostsFewAllocations_K7(t *testing.T) {
	d := decoderOf(strings.Repeat(eventOf(1), 200))
	if n := testing.AllocsPerRun(100, func() {
		if _, _, err := d.Decode(); err != nil {
			t.Fatal(err)
		}
	}); n > 40 {
		t.Errorf("an event costs %v allocations", n)
	}
}

func TestTheDigestIsOfWhatCounts_K6(t *testing.T) {
	c, _ := listing(serviceEntry)
	base := func() *object.Object {
		return &object.Object{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a", ResourceVersion: "1", Labels: map[string]string{"a": "b"}}, Spec: []byte(`{}`)}
	}
	yes := true
	for name, change := range map[string]func(o *object.Object){
		"labels":      func(o *object.Object) { o.Labels = map[string]string{"ab": ""} },
		"annotations": func(o *object.Object) { o.Annotations, o.Labels = o.Labels, nil },
		"spec":        func(o *object.Object) { o.Spec = []byte(`{"a":1}`) },
		"health":      func(o *object.Object) { o.Healthy = &yes },
		"mistake":     func(o *object.Object) { o.Err = errors.New("x") },
		"addresses":   func(o *object.Object) { o.Allocated = []services.Allocated{{Value: "240.240.0.1", Host: "a.x"}} },
	} {
		o := base()
		change(o)
		if c.converter.digest(o) == c.converter.digest(base()) {
			t.Errorf("%s do not count", name)
		}
	}
	o := base()
	o.ResourceVersion = "2"
	if c.converter.digest(o) != c.converter.digest(base()) {
		t.Error("the version counts")
	}
}

func FuzzObjects(f *testing.F) {
	f.Add(`{"type":"ADDED","object":{"metadata":{"name":"a","labels":{"a":1}},"spec":[]}}`)
	f.Add(`{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}}]}`)
	f.Add(`{"type":"ERROR","object":{"code":"x","details":[]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, _ := listing(federation.WorkloadEntry)
		check := func(o *object.Object) {
			if c.Prepare(o); o.Made.Err == nil && o.Made.Resource.FullName() != o.FullName() {
				t.Errorf("%s has become %s", o.FullName(), o.Made.Resource.FullName())
			}
		}
		if _, o, err := decoderOf(text).Decode(); err == nil {
			if one, ok := o.(*object.Object); ok && one.Name != "" {
				check(one)
			}
		}
		if l, err := decoderOf(text).List(); err == nil {
			for _, o := range l.Items {
				check(o)
			}
		}
	})
}

func BenchmarkConvert(b *testing.B) {
	c, _ := listing(serviceEntry)
	_, o, err := decoderOf(eventOf(1)).Decode()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		one := *o.(*object.Object)
		if c.Prepare(&one); one.Made.Err != nil {
			b.Fatal(one.Made.Err)
		}
	}
}

func BenchmarkDigest(b *testing.B) {
	c, _ := listing(serviceEntry)
	_, o, err := decoderOf(eventOf(1)).Decode()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		c.converter.digest(o.(*object.Object))
	}
}
