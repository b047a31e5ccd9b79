package kubernetes

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"k8s.io/apimachinery/pkg/watch"
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

// TestAnObjectCostsFewAllocations_K7 holds what an event takes until it is a resource.
func TestAnObjectCostsFewAllocations_K7(t *testing.T) {
	tg := &target{served: served{kind: workloadEntry, version: "v1"}, source: New(configOf(), envOf())}
	tg.kind.Kind = "ServiceEntry"
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

func BenchmarkEvent(b *testing.B) {
	text := eventOf(1)
	for b.Loop() {
		if event, _, err := decoderOf(text).Decode(); err != nil || event != watch.Added {
			b.Fatal(event, err)
		}
	}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
}

func BenchmarkFold(b *testing.B) {
	tg := &target{served: served{kind: workloadEntry, version: "v1"}, source: New(configOf(), envOf())}
	tg.kind.Kind = "ServiceEntry"
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
