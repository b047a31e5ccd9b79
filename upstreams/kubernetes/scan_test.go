package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/zeebo/xxh3"
	"k8s.io/apimachinery/pkg/watch"

	"meshrelay/mirror"
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

// TestTheScannerReadsWhatJSONReads_K7 compares it with encoding/json, however the bytes come.
func TestTheScannerReadsWhatJSONReads_K7(t *testing.T) {
	texts := []string{
		eventOf(1), `{"a":"\"}{\\","b":[{"c":"]"},1.5e3,true,null],"d\u0065":{"e":""}} "next" 12 null` + "\n", `  [ ] {} "" 1`, `"ü\ud83d\ude00"`,
	}
	for _, text := range texts {
		for name, r := range map[string]io.Reader{"at once": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text))} {
			s, dec := scanner{r: r}, json.NewDecoder(strings.NewReader(text))
			for {
				var want json.RawMessage
				wantErr := dec.Decode(&want)
				have, err := s.value()
				if (err == nil) != (wantErr == nil) || string(have) != string(want) {
					t.Fatalf("%s: %q and %v, want %q and %v", name, have, err, want, wantErr)
				}
				if err != nil {
					break
				}
			}
		}
	}
	var fields []string
	s := scannerOf([]byte(texts[1][:strings.Index(texts[1], ` "next"`)]))
	err := s.fields(func(key []byte) error {
		value, err := s.field()
		fields = append(fields, string(key)+"="+string(value))
		return err
	})
	if want := `[a="\"}{\\" b=[{"c":"]"},1.5e3,true,null] de={"e":""}]`; err != nil || fmt.Sprint(fields) != want {
		t.Errorf("%v: %v, want %s", err, fields, want)
	}
	for _, text := range []string{`[]`, `{"a"}`, `{"a":1 "b":2}`, `{,"a":1}`, `{"a":1`, `{1:2}`, `"a"`, ``} {
		s := scannerOf([]byte(text))
		if err := s.fields(func([]byte) error { _, err := s.field(); return err }); err == nil {
			t.Errorf("%q is an object", text)
		}
	}
}

// pieces reads some bytes at a time.
type pieces struct {
	r    io.Reader
	rand *rand.Rand
	most int
}

func (p pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(len(b), 1+p.rand.IntN(p.most))]) }

// TestEventsAreWhatJSONReadsHoweverTheyCome_K7 has events that are smaller and larger than what is read at
// once, and some whose labels are no labels.
func TestEventsAreWhatJSONReadsHoweverTheyCome_K7(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var texts []string
	for i := range 300 {
		labels, note := `{"app":"a\u0062"}`, strings.Repeat("x", rnd.IntN([]int{10, 1000, 100_000}[rnd.IntN(3)]))
		if i%7 == 0 {
			labels = `["` + strings.Repeat("y", rnd.IntN(40_000)) + `"]`
		}
		texts = append(texts, fmt.Sprintf(`{"object":{"spec":{"note":%q},"metadata":{"labels":%s,"annotations":{"a":%q},"name":"n-%d","managedFields":[{"x":%q}],"resourceVersion":"%d"}},"type":"MODIFIED"}`, note, labels, note, i, note, i))
	}
	for _, most := range []int{1 << 10, 10_000, 1 << 20} {
		d := newDecoder(io.NopCloser(pieces{strings.NewReader(strings.Join(texts, "\n") + "\n"), rnd, most}), false)
		for i, text := range texts {
			var want struct {
				Object struct {
					Spec     json.RawMessage
					Metadata struct {
						Name, ResourceVersion string
						Labels                json.RawMessage
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
			o, m := one.(*object), want.Object.Metadata
			if o.name != m.Name || o.version != m.ResourceVersion || string(o.spec) != string(want.Object.Spec) || !maps.Equal(o.annotations, m.Annotations) {
				t.Fatalf("event %d of %d bytes in pieces of %d is another one: %s", i, len(text), most, o.name)
			}
			if wrong := i%7 == 0; wrong != (o.err != nil) || !wrong && o.labels["app"] != "ab" {
				t.Errorf("event %d: labels %v, %v", i, o.labels, o.err)
			}
		}
		if _, _, err := d.Decode(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ends with %v", err)
		}
		if c := cap(d.scan.buf); c > 1<<20 {
			t.Errorf("%d bytes are kept to read", c)
		}
	}
}

// listing returns a target of ServiceEntries, and what it feeds.
func listing() (*target, *script) {
	kind, feed := mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, &script{held: map[string]xxh3.Uint128{}}
	source := New(configOf(), envOf())
	source.ledger = newLedger([]mirror.Kind{kind}, feed, nil, nil)
	return &target{served: served{kind: kind, version: "v1"}, source: source, again: make(chan struct{}, 1)}, feed
}

// TestWhatIsMirroredIsNotHeldTwiceWhileItIsListedAnew_K7: of an object that has not changed nothing is kept
// but its name and digest.
func TestWhatIsMirroredIsNotHeldTwiceWhileItIsListedAnew_K7(t *testing.T) {
	tg, feed := listing()
	read := func() *object {
		d := decoderOf(eventOf(1))
		d.fold = tg.fold
		_, o, err := d.Decode()
		if err != nil {
			t.Fatal(err)
		}
		return o.(*object)
	}
	first := read()
	if r, _, err := tg.decode(first); err != nil || r.FullName() != "team/service-000001" {
		t.Fatal(r, err)
	}
	feed.held["networking.istio.io/ServiceEntry team/service-000001"] = first.folded.digest
	again := read()
	if again.folded.resource != nil || again.spec != nil || again.labels != nil || again.annotations != nil {
		t.Errorf("it is held twice: %+v", again)
	}
	if again.digest("") != first.digest("") || again.size() != first.size() || again.fullName() != first.fullName() || again.version == "" {
		t.Errorf("it is another one: %+v", again)
	}
	// The intake asks for its content all the same where it has gone meanwhile.
	if _, _, err := tg.decode(again); !errors.Is(err, errLetGo) {
		t.Errorf("%v, want %v", err, errLetGo)
	}
	select {
	case <-tg.again:
	default:
		t.Error("it is not asked for again")
	}
}

// TestAnObjectCostsFewAllocations_K7 holds what an event takes until it is a resource.
func TestAnObjectCostsFewAllocations_K7(t *testing.T) {
	tg, _ := listing()
	all := strings.Repeat(eventOf(1), 200)
	var d *decoder
	scan := testing.AllocsPerRun(100, func() {
		if d == nil {
			d = decoderOf(all)
		}
		if _, _, err := d.Decode(); err != nil {
			t.Fatal(err)
		}
	})
	if scan > 20 {
		t.Errorf("an event costs %v allocations", scan)
	}
	_, o, _ := d.Decode()
	tg.fold(o.(*object))
	if f := o.(*object).folded; f.err != nil || f.resource == nil || o.(*object).spec != nil {
		t.Errorf("%+v", f)
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

func BenchmarkEvent(b *testing.B) {
	text := eventOf(1)
	d := newDecoder(io.NopCloser(&endless{text: text}), false)
	for b.Loop() {
		if event, _, err := d.Decode(); err != nil || event != watch.Added {
			b.Fatal(event, err)
		}
	}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
}

func BenchmarkFold(b *testing.B) {
	tg, _ := listing()
	_, o, err := decoderOf(eventOf(1)).Decode()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		one := *o.(*object)
		if tg.fold(&one); one.folded.err != nil {
			b.Fatal(one.folded.err)
		}
	}
}

func BenchmarkDigest(b *testing.B) {
	_, o, err := decoderOf(eventOf(1)).Decode()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		o.(*object).digest("")
	}
}
