package object

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestABudgetDropsContentAndBoundsTheNames_K7(t *testing.T) {
	lists := NewBudget(2000)
	first, second := lists.Begin(false), lists.Begin(false)
	for i, want := range []bool{true, true, false, true} { // the third needs too much
		o := &Object{Spec: make([]byte, []int{900, 900, 900, 100}[i])}
		if err := first.Admit(o); err != nil || (o.Err == nil) != want || (o.Spec != nil) != want {
			t.Errorf("object %d: %v, %v", i, err, o.Err)
		}
	}
	if held := (&Object{Made: &Made{Size: 5000}}); first.Admit(held) != nil || held.Err != nil {
		t.Error("an object that is held needs room for its content")
	}
	if err := second.Admit(&Object{}); err == nil || lists.used > 4000 { // both share the budget
		t.Errorf("any number of objects is admitted: %v", err)
	}
	first.Close()
	first.Close()
	if err := second.Admit(&Object{Made: &Made{Size: 5000}}); err != nil {
		t.Error(err)
	}
	if err := first.Admit(&Object{}); err == nil {
		t.Error("a list that has ended takes objects")
	}
	if second.Close(); lists.used != 0 {
		t.Errorf("%d bytes of no list", lists.used)
	}
	third, fourth := lists.Begin(false), lists.Begin(false)
	if o := (&Object{Spec: make([]byte, 1900)}); third.Admit(o) != nil || o.Err != nil {
		t.Error("an empty budget has no room")
	}
	if o := (&Object{Spec: make([]byte, 1900)}); fourth.Admit(o) == nil || o.Err != nil {
		t.Error("an object is refused, and another list is why")
	}
	third.Close()
	fourth.Close()
	if err := lists.Begin(true).Admit(&Object{Spec: make([]byte, 4000)}); err == nil {
		t.Error("more than twice the limit is admitted")
	}
	lists.Set(0)
	if err := lists.Begin(true).Admit(&Object{Spec: make([]byte, 1<<20)}); err != nil {
		t.Error(err)
	}
	(*Reading)(nil).Close()
}

// The heap of a list is at most twice what is counted for it, whatever is large in the objects.
func TestTheObjectsOfAListTakeAtMostTwiceTheirCount_K7(t *testing.T) {
	long := strings.Repeat("a", 200)
	for name, metadata := range map[string]func(i int) string{
		"names":      func(i int) string { return fmt.Sprintf(`"name":"a%d"`, i) },
		"long names": func(i int) string { return fmt.Sprintf(`"name":"a%d%s","namespace":"%s"`, i, long, long) },
		"versions": func(i int) string {
			return fmt.Sprintf(`"name":"a%d","resourceVersion":"%s"`, i, strings.Repeat("1", 1000))
		},
		"labels":          func(i int) string { return fmt.Sprintf(`"name":"a%d","labels":%s`, i, labels(40)) },
		"annotations":     func(i int) string { return fmt.Sprintf(`"name":"a%d","annotations":%s`, i, labels(1)) },
		"specs and names": func(i int) string { return fmt.Sprintf(`"name":"a%d"},"spec":{"a":"%s"`, i, strings.Repeat("b", 3000)) },
	} {
		var items []string
		for i := range 2000 {
			items = append(items, "{\"metadata\":{"+metadata(i)+"}}")
		}
		d := decoderOf(`{"metadata":{"resourceVersion":"1"},"items":[` + strings.Join(items, ",") + `]}`)
		lists := NewBudget(1 << 30)
		d.Admit = lists.Begin(false).Admit
		before := heap()
		l, err := d.List()
		if err != nil {
			t.Fatal(name, err)
		}
		if took := heap() - before; took > 2*lists.used || 4*took < lists.used {
			t.Errorf("%s: %d KiB of heap, and %d KiB are counted", name, took>>10, lists.used>>10)
		}
		runtime.KeepAlive(l)
		runtime.KeepAlive(d) // it has the text
	}
}

func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func labels(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"a%d":""`, i))
	}
	return "{" + strings.Join(all, ",") + "}"
}

func TestTextsOfAllKindsAreCounted_K7(t *testing.T) {
	long := strings.Repeat("a", 1000)
	cost := func(o *Object) int { bare, content := o.costs(); return bare + content }
	for name, o := range map[string]*Object{
		"name":        {ObjectMeta: metav1.ObjectMeta{Name: long}},
		"namespace":   {ObjectMeta: metav1.ObjectMeta{Namespace: long}},
		"version":     {ObjectMeta: metav1.ObjectMeta{ResourceVersion: long}},
		"labels":      {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{long: ""}}},
		"annotations": {ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"": long}}},
		"status":      {Status: []byte(long)}, "data": {Data: []byte(long)}, "spec": {Spec: []byte(long)},
		"unknown": {Made: &Made{Unknown: []string{long}}},
	} {
		if n := cost(o) - cost(&Object{}); n < 1000 {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
}

// A list keeps nothing of objects in namespaces that are not selected, and they need no room.
func TestObjectsThatAreNotSelectedTakeNoMemory_K7(t *testing.T) {
	lists := NewBudget(1000)
	d := decoderOf(`{"metadata":{"resourceVersion":"1"},"items":[` + strings.Repeat(`{"metadata":{"name":"a","namespace":"n"}},`, 5000) + `{"metadata":{"name":"b"}}]}`)
	d.Prepare, d.Admit = func(o *Object) { o.Unselected = o.Namespace != "" }, lists.Begin(false).Admit
	if l, err := d.List(); err != nil || len(l.Items) != 1 {
		t.Errorf("%+v: %v", l, err)
	}
}

// No API server sends longer names and versions: another server may mean anything by them.
func TestLongNamesEndTheResponse_K7(t *testing.T) {
	long := func(n int) string { return strings.Repeat("a", n) }
	for metadata, want := range map[string]string{
		`"name":"` + long(253) + `","namespace":"` + long(253) + `","resourceVersion":"` + long(1024) + `"`: "",
		`"name":"` + long(254) + `"`:                        "the server has sent a metadata.name of 254 bytes: want 253 at most",
		`"name":"b","namespace":"` + long(1<<20) + `"`:      "the server has sent a metadata.namespace of 1048576 bytes: want 253 at most",
		`"name":"b","resourceVersion":"` + long(1025) + `"`: "the server has sent a metadata.resourceVersion of 1025 bytes: want 1024 at most",
	} {
		for _, text := range []string{`{"type":"MODIFIED","object":{"metadata":{` + metadata + `}}}`, `{"type":"DELETED","object":{"metadata":{` + metadata + `}}}`} {
			if _, _, err := decoderOf(text).Decode(); fmt.Sprint(err) != want && (want != "" || err != nil) {
				t.Errorf("%.80s: %v", text, err)
			}
		}
		if _, err := decoderOf(`{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{` + metadata + `}}]}`).List(); fmt.Sprint(err) != want && (want != "" || err != nil) {
			t.Errorf("%.80s: %v", metadata, err)
		}
	}
	for _, metadata := range []string{`"resourceVersion":"` + long(1025) + `"`, `"resourceVersion":"1","continue":"` + long(10_000) + `"`} {
		if _, err := decoderOf(`{"metadata":{` + metadata + `},"items":[]}`).List(); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("a list with %.40s: %v", metadata, err)
		}
	}
	if _, _, err := decoderOf(`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"` + long(1025) + `"}}}`).Decode(); err == nil {
		t.Error("a bookmark may have any length")
	}
}

func TestLabelsAreCountedBeforeTheyAreDecoded_K7(t *testing.T) {
	for metadata, want := range map[string]string{
		`"labels":` + labels(4096):                                "",
		`"labels":` + labels(4097):                                "metadata.labels: it has more than 4097 values",
		`"annotations":` + labels(1<<17):                          "metadata.annotations: it has more than 4097 values",
		`"labels":{"a":1}`:                                        "metadata.labels: the value is a number, not a string",
		`"annotations":{"a":"` + `\"` + `bbbbbbbbb"}`:             "",
		`"annotations":{"a":"` + strings.Repeat(",", 9000) + `"}`: "",
	} {
		one := `{"metadata":{"name":"b",` + metadata + `}}`
		l, err := decoderOf(`{"metadata":{"resourceVersion":"1"},"items":[` + one + `,{"metadata":{"name":"c","labels":{"a":"b"}}}]}`).List()
		if err != nil || len(l.Items) != 2 || l.Items[1].Err != nil || l.Items[1].Labels["a"] != "b" {
			t.Fatalf("%.40s: %v", metadata, err)
		}
		if o := l.Items[0]; fmt.Sprint(o.Err) != want && (want != "" || o.Err != nil) {
			t.Errorf("%.40s: %v", metadata, o.Err)
		}
	}
}
