package object

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/iotest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	kjson "sigs.k8s.io/json"

	"meshrelay/internal/panics"
	"meshrelay/internal/yamlpos"
)

// These are what an upgrade of client-go may change.
var (
	_ watch.Decoder        = (*Decoder)(nil)
	_ runtime.Object       = (*Object)(nil)
	_ metav1.Object        = (*Object)(nil)
	_ runtime.Object       = (*List)(nil)
	_ metav1.ListInterface = (*List)(nil)
)

// eventOf is an event as clusters send it: most of it is not kept.
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

func decoderOf(text string) *Decoder { return NewDecoder(io.NopCloser(strings.NewReader(text))) }

func TestEventsKeepOnlyWhatIsMirrored_K7(t *testing.T) {
	const text = `{"type":"ADDED","object":{"apiVersion":"v1","kind":"X","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7",
	"managedFields":[{"manager":"m"}],"ownerReferences":[{}],"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"long"}},
	"spec":{"a":
	[1]},"Spec":{"b":2},"status":{"conditions":[{"type":"Healthy","status":"True"}]}}}
{"type":"BOOKMARK","object":{"kind":"X","metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}
{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410,"reason":"Expired","message":"too old","details":{"retryAfterSeconds":3}}}
`
	d := decoderOf(text)
	kind, o, err := d.Decode()
	a := o.(*Object)
	a.SetHealthy()
	if err != nil || kind != watch.Added || a.FullName() != "n/a" || a.ResourceVersion != "7" || string(a.Spec) != `{"a":[1]}` || a.Labels != nil || a.Annotations != nil ||
		a.ManagedFields != nil || a.Healthy == nil || !*a.Healthy || a.Err != nil {
		t.Errorf("%s %+v: %v", kind, a, err)
	}
	kind, o, err = d.Decode()
	if b := o.(*Object); err != nil || kind != watch.Bookmark || b.ResourceVersion != "9" || b.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
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
	large := `"` + strings.Repeat("x", 3<<20) + `"`
	for name, text := range map[string]string{
		"no JSON":              `<html>`,
		"no name":              `{"type":"ADDED","object":{"metadata":{}}}`,
		"an unknown event":     `{"type":"HELLO","object":{"metadata":{"name":"a"}}}`,
		"cut short":            `{"type":"ADDED","object":{"metadata":{"na`,
		"an object of 3 MiB":   `{"type":"ADDED","object":{"metadata":{"name":"a"},"spec":{"a":` + large + `}}}`,
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
		"a text":        `"` + strings.Repeat("x", 1<<20) + `"`,
		"no objects":    `{"metadata":{"resourceVersion":"1"},"items":{"a":1}}`,
		"one nameless":  `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}},{}]}`,
		"a large item":  `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"},"x":` + large + `}]}`,
		"a large field": `{"x":` + large + `}`,
		"a large key":   `{` + large + `:1}`,
		"many fields":   `{"metadata":{"resourceVersion":"1"},"items":[]` + strings.Repeat(`,"x":1`, maxParts) + `}`,
	} {
		if l, err := decoderOf(text).List(); err == nil {
			t.Errorf("%s: %d items", name, len(l.Items))
		} else if len(err.Error()) > 4096 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
	many := `{"items":[` + strings.Repeat(`{"metadata":{"name":"a"},"x":"`+strings.Repeat("x", 1<<20)+`"},`, 20) + `{"metadata":{"name":"b"}}],"metadata":{"resourceVersion":"5","continue":"c"}}`
	if l, err := decoderOf(many).List(); err != nil || len(l.Items) != 21 || l.ResourceVersion != "5" || l.Continue != "c" {
		t.Errorf("a list of 20 MiB: %v", err)
	}
}

func TestTheErrorTextOfAServerIsBounded_K9(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	kind, o, err := decoderOf(`{"type":"ERROR","object":{"code":500,"message":"` + long + `"}}`).Decode()
	if err != nil || kind != watch.Error {
		t.Fatal(kind, err)
	}
	if s := fmt.Sprint(o); len(s) > 4096 {
		t.Errorf("an event of %d bytes", len(s))
	}
	if _, _, err := decoderOf(`{"type":"` + long + `"}`).Decode(); len(err.Error()) > 4096 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}

// A field of a wrong type is a mistake of that object, whose name is known.
func TestAFieldOfAWrongTypeIsAMistakeOfItsObject_K3(t *testing.T) {
	for metadata, want := range map[string]string{
		`"labels":{"a":1}`:        "metadata.labels",
		`"labels":["a"]`:          "metadata.labels: the value is a array",
		`"annotations":{"a":{}}`:  "metadata.annotations",
		`"creationTimestamp":"x"`: "metadata.creationTimestamp is not a time",
		`"creationTimestamp":123`: "metadata.creationTimestamp: the value is a number",
	} {
		object := `{"metadata":{"name":"a",` + metadata + `},"spec":{"b":1}}`
		_, o, err := decoderOf(`{"type":"ADDED","object":` + object + `}`).Decode()
		if err != nil {
			t.Fatal(err)
		}
		l, err := decoderOf(`{"metadata":{"resourceVersion":"1"},"items":[` + object + `,{"metadata":{"name":"b"}}]}`).List()
		if err != nil || len(l.Items) != 2 || l.Items[1].Err != nil {
			t.Fatal(l, err)
		}
		for _, o := range []*Object{o.(*Object), l.Items[0]} {
			if o.Name != "a" || string(o.Spec) != `{"b":1}` || o.Err == nil || !strings.HasPrefix(o.Err.Error(), want) {
				t.Errorf("%s: %v, want %s", metadata, o.Err, want)
			}
		}
	}
}

// A value of two bytes takes a hundred when it is decoded, so that 2 MiB would take 100 MiB.
func TestAnObjectOfTooManyValuesIsAMistakeOfThatObject_K3(t *testing.T) {
	for _, field := range []string{"spec", "status", "data"} {
		value := `{"conditions":[` + strings.Repeat("{},", 500_000) + `{}]}`
		text := `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"},"` + field + `":` + value + `},{"metadata":{"name":"b"},"` + field + `":{"a":["{,[,"]}}]}`
		l, err := decoderOf(text).List()
		if err != nil || len(l.Items) != 2 || l.Items[1].Err != nil {
			t.Fatal(l, err)
		}
		o := l.Items[0]
		if o.SetHealthy(); o.Err == nil || o.Err.Error() != "spec, status or data: it has more than 200000 values" || len(o.Spec)+len(o.Status)+len(o.Data) > 0 {
			t.Errorf("%s: %v, with %d bytes", field, o.Err, len(o.Spec)+len(o.Status)+len(o.Data))
		}
	}
	var o runtime.Object
	text := `{"type":"ERROR","object":{"code":410,"details":{"causes":[` + strings.Repeat("{},", 500_000) + `{}]}}}`
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	if _, o, _ = decoderOf(text).Decode(); o.(*metav1.Status).Code != 410 {
		t.Error(o)
	}
	if goruntime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 64<<20 {
		t.Errorf("%d MiB are allocated for the reason of an error", (after.TotalAlloc-before.TotalAlloc)>>20)
	}
}

// pieces reads some bytes at a time.
type pieces struct {
	r    io.Reader
	rand *rand.Rand
	most int
}

func (p pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(len(b), 1+p.rand.IntN(p.most))]) }

// TestEventsAreWhatJSONReadsHoweverTheyCome_K7 has events that are smaller and larger than the buffer that a
// watch keeps.
func TestEventsAreWhatJSONReadsHoweverTheyCome_K7(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var texts []string
	for i := range 300 {
		note := strings.Repeat("x", rnd.IntN([]int{10, 1000, 100_000}[rnd.IntN(3)]))
		texts = append(texts, fmt.Sprintf(`{"object":{"spec":{"note":%q},"metadata":{"labels":{"app":"a\u0062"},"annotations":{"a":%q},"name":"n-%d","managedFields":[{"x":%q}],"resourceVersion":"%d"}},"type":"MODIFIED"}`, note, note, i, note, i))
	}
	for _, most := range []int{1 << 10, 10_000, 1 << 20} {
		d := NewDecoder(io.NopCloser(pieces{strings.NewReader(strings.Join(texts, "\n") + "\n"), rnd, most}))
		for i, text := range texts {
			var want struct {
				Object struct {
					Spec     json.RawMessage
					Metadata struct {
						Name, ResourceVersion string
						Annotations           map[string]string
					}
				}
			}
			if err := json.Unmarshal([]byte(text), &want); err != nil {
				t.Fatal(err)
			}
			event, one, err := d.Decode()
			if err != nil || event != watch.Modified {
				t.Fatalf("event %d of %d bytes in pieces of %d: %s, %v", i, len(text), most, event, err)
			}
			o, m := one.(*Object), want.Object.Metadata
			if o.Name != m.Name || o.ResourceVersion != m.ResourceVersion || string(o.Spec) != string(want.Object.Spec) || !maps.Equal(o.Annotations, m.Annotations) || o.Labels["app"] != "ab" {
				t.Fatalf("event %d of %d bytes in pieces of %d is another one: %s", i, len(text), most, o.Name)
			}
		}
		if _, _, err := d.Decode(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ends with %v", err)
		}
	}
}

// broken panics when it is read.
type broken struct{}

func (broken) Read([]byte) (int, error) { panic("over a stream") }

func TestAPanicOverAStreamEndsThatStream_C7(t *testing.T) {
	for name, read := range map[string]func(*Decoder) error{
		"a watch": func(d *Decoder) error { _, _, err := d.Decode(); return err },
		"a list":  func(d *Decoder) error { _, err := d.List(); return err },
	} {
		var p *panics.Panic
		if err := read(NewDecoder(io.NopCloser(broken{}))); !errors.As(err, &p) || p.Value != "over a stream" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzDecoder compares what the decoder makes of any text with what the library makes of it as a whole.
func FuzzDecoder(f *testing.F) {
	for _, text := range []string{
		eventOf(1), `{"type":"ADDED","object":{"metadata":{"name":"a","labels":{"x":"\ud800","y":null}},"spec":{"a":"\"}{\\"}}}`,
		`{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b","labels":{"a":1}},"spec":null}]}`,
		`{"type":"ERROR","object":{"code":410,"message":"\u0000","details":[]}}`, `{"metadata":{"resourceVersion":"1"},"items":null}`,
		`{"a":}`, `{"a":,,"b":1}`, `"`, `\`, `{"type":"ADDED","object":{"Spec":1,"spec":2,"metadata":{"Name":"b","name":"a"}}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var event struct {
			Type   string   `json:"type"`
			Object envelope `json:"object"`
		}
		alike(t, text, kjson.UnmarshalCaseSensitivePreserveInts(text, &event), &event.Object, func(d *Decoder) (*Object, error) {
			kind, o, err := d.Decode()
			one, is := o.(*Object)
			if is && kind == watch.Bookmark {
				return nil, nil
			}
			return one, err
		})
		var list struct {
			Items []envelope `json:"items"`
		}
		l, err := decoderOf(string(text)).List()
		if err != nil {
			return
		}
		if wantErr := kjson.UnmarshalCaseSensitivePreserveInts(text, &list); wantErr == nil && len(list.Items) == len(l.Items) {
			for i, o := range l.Items {
				same(t, text, &list.Items[i], o)
			}
		}
	})
}

// alike compares the first object of a text, at once and byte by byte, with an envelope.
func alike(t *testing.T, text []byte, wantErr error, want *envelope, read func(*Decoder) (*Object, error)) {
	t.Helper()
	for _, r := range []io.Reader{bytes.NewReader(text), iotest.OneByteReader(bytes.NewReader(text))} {
		o, err := read(NewDecoder(io.NopCloser(r)))
		if wantErr == nil && err == nil && o != nil {
			same(t, text, want, o)
		}
	}
}

func same(t *testing.T, text []byte, want *envelope, o *Object) {
	t.Helper()
	m := want.Metadata
	for _, field := range [][]byte{want.Spec, want.Status, want.Data} {
		if yamlpos.CheckJSON(field, maxValues) != nil {
			if o.Err == nil || len(o.Spec)+len(o.Status)+len(o.Data) > 0 {
				t.Fatalf("an object with too many values is kept: %v", o.Err)
			}
			return
		}
	}
	delete(m.Annotations.of, lastApplied)
	spec, wantSpec := &bytes.Buffer{}, &bytes.Buffer{}
	if len(want.Spec) > 0 {
		if err := errors.Join(json.Compact(spec, o.Spec), json.Compact(wantSpec, want.Spec)); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	}
	if o.Name != m.Name || o.Namespace != m.Namespace || o.ResourceVersion != m.ResourceVersion || !maps.Equal(o.Labels, m.Labels.of) || !maps.Equal(o.Annotations, m.Annotations.of) ||
		!bytes.Equal(spec.Bytes(), wantSpec.Bytes()) || !bytes.Equal(o.Status, want.Status) || !bytes.Equal(o.Data, want.Data) {
		t.Fatalf("%q: %+v, want %+v", text, o, want)
	}
}

// endless repeats a text.
type endless struct {
	text string
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.text[e.at:])
	e.at = (e.at + n) % len(e.text)
	return n, nil
}

// BenchmarkEvent decodes an event of 4.6 KB, BenchmarkRawEvent only finds its end. Making the resource comes on top:
// with BenchmarkConvert of package kubernetes, the library costs 1.6 times what a scanner of our own did.
func BenchmarkEvent(b *testing.B) {
	text := eventOf(1)
	d := NewDecoder(io.NopCloser(&endless{text: text}))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if event, _, err := d.Decode(); err != nil || event != watch.Added {
			b.Fatal(event, err)
		}
	}
}

func BenchmarkRawEvent(b *testing.B) {
	text := eventOf(1)
	r := bufio.NewReaderSize(&endless{text: text}, 64<<10)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if line, err := r.ReadSlice('\n'); err != nil || len(line) != len(text) {
			b.Fatal(len(line), err)
		}
	}
}
