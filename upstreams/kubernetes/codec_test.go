package kubernetes

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"meshrelay/upstreams"
)

func envOf() upstreams.Env { return upstreams.Env{Log: slog.New(slog.DiscardHandler)} }

// These are what an upgrade of client-go may change.
var (
	_ cache.ReflectorStore           = (*target)(nil)
	_ cache.ListerWatcherWithContext = (*target)(nil)
	_ watch.Decoder                  = (*stream)(nil)
	_ runtime.Object                 = (*objects)(nil)
	_ metav1.Object                  = (*object)(nil)
	_ metav1.ListInterface           = (*objects)(nil)
)

func decoderOf(text string) *decoder { return newDecoder(io.NopCloser(strings.NewReader(text)), true) }

func TestEventsKeepOnlyWhatIsMirrored_K7(t *testing.T) {
	const text = `{"type":"ADDED","object":{"apiVersion":"v1","kind":"X","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7",
	"managedFields":[{"manager":"m"}],"ownerReferences":[{}],"labels":{},"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"long"}},
	"spec":{"a":
	[1]},"status":{"conditions":[{"type":"Healthy","status":"True"}]}}}
{"type":"BOOKMARK","object":{"kind":"X","metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}
{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410,"reason":"Expired","message":"too old","details":{"retryAfterSeconds":3}}}
`
	d := decoderOf(text)
	kind, o, err := d.Decode()
	a := o.(*object)
	if err != nil || kind != watch.Added || a.fullName() != "n/a" || a.version != "7" || string(a.spec) != `{"a":[1]}` || a.labels != nil || a.annotations != nil || a.health == nil || !*a.health || a.err != nil {
		t.Errorf("%s %+v: %v", kind, a, err)
	}
	kind, o, err = d.Decode()
	if b := o.(*object); err != nil || kind != watch.Bookmark || b.GetResourceVersion() != "9" || b.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("%s %+v: %v", kind, o, err)
	}
	kind, o, err = d.Decode()
	if err != nil || kind != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(o)) {
		t.Errorf("%s %+v: %v", kind, o, err)
	}
	if _, _, err = d.Decode(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestAnElementThatIsNoObjectEndsTheStream_K3(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":              `<html>`,
		"no name":              `{"type":"ADDED","object":{"metadata":{}}}`,
		"an unknown event":     `{"type":"HELLO","object":{"metadata":{"name":"a"}}}`,
		"cut short":            `{"type":"ADDED","object":{"metadata":{"na`,
		"an object of 9 MiB":   `{"type":"ADDED","object":{"metadata":{"name":"a"},"spec":{"a":"` + strings.Repeat("x", 9<<20) + `"}}}`,
		"a name of wrong type": `{"type":"ADDED","object":{"metadata":{"name":1}}}`,
	} {
		if kind, o, err := decoderOf(text).Decode(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %s %v %v", name, kind, o, err)
		}
	}
	for name, text := range map[string]string{
		"no items":      `{"metadata":{"resourceVersion":"1"}}`,
		"no version":    `{"metadata":{},"items":[]}`,
		"cut short":     `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}}`,
		"no list":       `[]`,
		"no objects":    `{"metadata":{"resourceVersion":"1"},"items":{"a":1}}`,
		"one nameless":  `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}},{}]}`,
		"a large item":  `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"},"x":"` + strings.Repeat("x", 9<<20) + `"}]}`,
		"a large field": `{"x":"` + strings.Repeat("x", 9<<20) + `"}`,
	} {
		if l, err := decoderOf(text).list(); err == nil {
			t.Errorf("%s: %d items", name, len(l.Items))
		}
	}
	many := `{"items":[` + strings.Repeat(`{"metadata":{"name":"a"},"x":"`+strings.Repeat("x", 1<<20)+`"},`, 20) + `{"metadata":{"name":"b"}}],"metadata":{"resourceVersion":"5","continue":"c"}}`
	if l, err := decoderOf(many).list(); err != nil || len(l.Items) != 21 || l.ResourceVersion != "5" || l.Continue != "c" {
		t.Errorf("a list of 20 MiB: %v", err)
	}
}

func TestTheDigestIsOfWhatCounts_K6(t *testing.T) {
	base := func() *object {
		return &object{namespace: "n", name: "a", version: "1", labels: map[string]string{"a": "b"}, spec: []byte(`{}`)}
	}
	yes := true
	for name, change := range map[string]func(o *object){
		"labels":      func(o *object) { o.labels = map[string]string{"ab": ""} },
		"annotations": func(o *object) { o.annotations, o.labels = o.labels, nil },
		"spec":        func(o *object) { o.spec = []byte(`{"a":1}`) },
		"health":      func(o *object) { o.health = &yes },
		"mistake":     func(o *object) { o.err = errors.New("x") },
	} {
		o := base()
		change(o)
		if o.digest("") == base().digest("") {
			t.Errorf("%s do not count", name)
		}
	}
	o := base()
	o.version = "2"
	if o.digest("") != base().digest("") || o.digest("other") == base().digest("") {
		t.Error("the version counts, or the settings do not")
	}
}

func TestATransportFollowsNoRedirectAndIsHTTP2(t *testing.T) {
	section := &Config{Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := os.WriteFile(section.Kubeconfig, []byte(kubeconfigOf(`{server: "https://127.0.0.1:1"}`, `{token: t}`)), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := accessOf(section)
	if err != nil {
		t.Fatal(err)
	}
	transport, client, err := a.transport()
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(client.CheckRedirect(nil, nil), http.ErrUseLastResponse) {
		t.Error("redirects are followed, with the token")
	}
	if transport.TLSNextProto["h2"] == nil {
		t.Error("no HTTP/2: silent servers are not noticed")
	}
	if a.config.QPS != -1 || a.config.Timeout != 0 {
		t.Errorf("limits of client-go: %v, %v", a.config.QPS, a.config.Timeout)
	}
}

func FuzzObjects(f *testing.F) {
	f.Add(`{"type":"ADDED","object":{"metadata":{"name":"a","labels":{"a":1}},"spec":[]}}`)
	f.Add(`{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}}]}`)
	f.Add(`{"type":"ERROR","object":{"code":"x","details":[]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		s := New(configOf(), envOf())
		tg := &target{served: served{kind: workloadEntry, version: "v1"}, source: s}
		decode := func(o *object) {
			if r, _, err := tg.decode(o); err == nil && r.FullName() != o.fullName() {
				t.Errorf("%s has become %s", o.fullName(), r.FullName())
			}
			_ = o.digest("")
		}
		if _, o, err := decoderOf(text).Decode(); err == nil {
			if one, ok := o.(*object); ok && one.name != "" {
				decode(one)
			}
		}
		if l, err := decoderOf(text).list(); err == nil {
			for _, o := range l.Items {
				decode(o)
			}
		}
	})
}
