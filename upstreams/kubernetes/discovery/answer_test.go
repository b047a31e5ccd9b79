package discovery

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"meshrelay/mirror"
)

var (
	gateway = mirror.Kind{Group: "gateway.networking.k8s.io", Kind: "Gateway"}
	wanted  = []mirror.Kind{kind, gateway}
)

// resourceOf returns a kind as a server serves it, in JSON.
func resourceOf(kind, plural string) string {
	return fmt.Sprintf(`{"resource":%q,"responseKind":{"group":"","version":"","kind":%q},"scope":"Namespaced","singularResource":"s","verbs":["get","list","watch"],"shortNames":["s"],"subresources":[{"subresource":"status","responseKind":{"kind":%q},"verbs":["get"]}]}`, plural, kind, kind)
}

const (
	head = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{"name":"apiextensions.k8s.io","creationTimestamp":null},"versions":[{"version":"v1","resources":[],"freshness":"Current"}]},`
	tail = `]}`
)

// groupOf returns a group with its fields in the order of a server, or in another.
func groupOf(name, version, freshness, resources string, reversed bool) string {
	if reversed {
		return fmt.Sprintf(`{"versions":[{"freshness":%q,"resources":[%s],"version":%q}],"metadata":{"name":%q}}`, freshness, resources, version, name)
	}
	return fmt.Sprintf(`{"metadata":{"name":%q,"creationTimestamp":null},"versions":[{"version":%q,"resources":[%s],"freshness":%q}]}`, name, version, resources, freshness)
}

func TestAnAnswerKeepsOnlyWhatIsWanted_K7(t *testing.T) {
	for _, reversed := range []bool{false, true} {
		text := head + strings.Join([]string{
			groupOf(kind.Group, "v1", "Current", resourceOf("VirtualService", "virtualservices")+","+resourceOf("Gateway", "gateways"), reversed),
			groupOf(kind.Group, "v1beta1", "Current", resourceOf("VirtualService", "virtualservices"), reversed),
			groupOf(gateway.Group, "v1", "Stale", strings.Replace(resourceOf("Gateway", "gateways"), `,"watch"`, "", 1), reversed),
			groupOf("other.example.com", "v1", "Stale", resourceOf("Gateway", "gateways"), reversed),
		}, ",") + tail
		a, err := read(strings.NewReader(text), wanted)
		if err != nil {
			t.Fatal(err)
		}
		one := Resource{Kind: kind, Version: "v1", Plural: "virtualservices", Namespaced: true, Selected: true}
		other := one
		other.Version = "v1beta1"
		want := &Answer{Kinds: map[mirror.Kind][]Resource{kind: {one, other}}, unsure: map[string]bool{gateway.Group: true}, complete: true}
		if !reflect.DeepEqual(a, want) {
			t.Errorf("reversed %v: %+v, want %+v", reversed, a, want)
		}
	}
}

// repeated is text so often that it has some bytes.
func repeated(text string, bytes int) string { return strings.Repeat(text, bytes/len(text)) }

// Each answer is as large as one may be. They cost what is kept, and not what is sent.
func TestAHostileAnswerCostsLittle_K7(t *testing.T) {
	const most = maxAnswer - 1<<20
	const many, large = "too many fields and elements", "a value of more than 64 KiB"
	kinds := resourceOf("VirtualService", "virtualservices") + ","
	for name, tc := range map[string]struct {
		text string
		want string
	}{
		"empty groups":         {`{"items":[` + repeated(`{},`, most) + `{}]}`, many},
		"empty versions":       {`{"items":[{"versions":[` + repeated(`{},`, most) + `{}]}]}`, many},
		"empty kinds":          {`{"items":[{"versions":[{"resources":[` + repeated(`{},`, most) + `{}]}]}]}`, many},
		"names of groups":      {`{"groups":[` + repeated(`{},`, most) + `{}]}`, many},
		"wanted kinds":         {`{"items":[` + groupOf(kind.Group, "v1", "Current", repeated(kinds, most)+kinds[:len(kinds)-1], false) + tail, "more than 10000 versions"},
		"of groups not wanted": {`{"items":[` + groupOf("a.example.com", "v1", "Current", repeated(kinds, most)+kinds[:len(kinds)-1], true) + tail, "more than 10000 versions"},
		"verbs":                {`{"items":[{"versions":[{"resources":[{"verbs":[` + repeated(`"",`, most) + `""]}]}]}]}`, large},
		"one long name":        {`{"items":[{"metadata":{"name":"` + repeated("x", most) + `"}}]}`, large},
		"one long key":         {`{"` + repeated("x", most) + `":1}`, large},
		"a deep value":         {`{"items":[{"x":` + repeated("[", most), "exceeded max depth"},
		"unknown fields":       {`{` + repeated(`"x":[{}],`, most) + `"items":[]}`, many},
		"one field repeated":   {`{"items":[{` + repeated(`"metadata":{},`, most) + `"versions":[]}]}`, many},
		"spaces":               {`{"items":[` + repeated(" ", most), large},
	} {
		t.Run(name, func(t *testing.T) {
			r := strings.NewReader(tc.text)
			var a *Answer
			var err error
			n := allocated(func() { a, err = read(r, wanted) })
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%+v, %v", a, err)
			}
			if n > 4*maxAnswer { // the race detector takes some as well
				t.Errorf("%d bytes are allocated in all", n)
			}
		})
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// groupList has the fields of an APIGroupDiscoveryList that count.
type groupList struct {
	Groups []json.RawMessage `json:"groups"`
	Items  []struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Versions []struct {
			Version   string `json:"version"`
			Freshness string `json:"freshness"`
			Resources []struct {
				Resource     string `json:"resource"`
				ResponseKind struct {
					Kind string `json:"kind"`
				} `json:"responseKind"`
				Scope string   `json:"scope"`
				Verbs []string `json:"verbs"`
			} `json:"resources"`
		} `json:"versions"`
	} `json:"items"`
}

// answer returns what a list has of the wanted kinds.
func (l *groupList) answer() *Answer {
	a := &Answer{Kinds: map[mirror.Kind][]Resource{}, unsure: map[string]bool{}}
	for _, g := range l.Items {
		group := g.Metadata.Name
		a.complete = a.complete || group == definitions
		for _, v := range g.Versions {
			if v.Freshness == "Stale" && slices.Contains([]string{definitions, kind.Group, gateway.Group}, group) {
				a.unsure[group] = true
			}
			for _, r := range v.Resources {
				k := mirror.Kind{Group: group, Kind: r.ResponseKind.Kind}
				if slices.Contains(wanted, k) && !strings.Contains(r.Resource, "/") && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") {
					a.Kinds[k] = append(a.Kinds[k], Resource{Kind: k, Version: v.Version, Plural: r.Resource, Namespaced: r.Scope == "Namespaced", Selected: true})
				}
			}
		}
	}
	return a
}

// ambiguous reports whether a value has a key twice, or a key that encoding/json takes for another one.
func ambiguous(d *json.Decoder) bool {
	fields := []string{"groups", "items", "metadata", "name", "versions", "version", "freshness", "resources", "resource", "responseKind", "kind", "scope", "verbs"}
	t, _ := d.Token()
	begin, nested := t.(json.Delim)
	if !nested {
		return false
	}
	seen, is := map[string]bool{}, false
	for d.More() {
		if begin == '{' {
			t, _ := d.Token()
			key, _ := t.(string)
			is = is || seen[key] || slices.ContainsFunc(fields, func(f string) bool { return f != key && strings.EqualFold(f, key) })
			seen[key] = true
		}
		is = ambiguous(d) || is
	}
	_, _ = d.Token()
	return is
}

// FuzzAnswer compares what is kept of any text with what encoding/json makes of it, and bounds what it costs.
func FuzzAnswer(f *testing.F) {
	vs := resourceOf("VirtualService", "virtualservices")
	for _, text := range []string{
		head + groupOf(kind.Group, "v1", "Current", vs, false) + tail, head + groupOf(gateway.Group, "v1", "Stale", resourceOf("Gateway", "gateways")+","+vs, true) + tail,
		`{"kind":"APIGroupList","groups":[{"name":"apps"}]}`, `null`, `{}`, `{"items":null,"x":[[[]]]}`, `{"items":[null,{"versions":[null,{"resources":[null]}]}]}`,
		`{"items":[{"metadata":{"name":"a"},"metadata":{},"versions":[]}],"Items":[]}`, `{"items":[{"versions":{}}]}`, `{"items":[{}` + strings.Repeat(",{}", 50) + `]}`,
		strings.Replace(vs, "virtualservices", "../x", 1), head + groupOf(kind.Group, "v/1", "Current", vs, false) + tail, `{"items":[]} 1`, `{"items":[{"metaData":1}]}`, `{"\u0069tems":[{"metadata":1}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var a *Answer
		var err error
		if n := allocated(func() { a, err = read(bytes.NewReader(text), wanted) }); n > 1<<20+uint64(len(text))*100 {
			t.Errorf("%d bytes of an answer have %d allocated", len(text), n)
		}
		var list groupList
		valid := json.Unmarshal(text, &list) == nil
		switch {
		case json.Valid(text) && ambiguous(json.NewDecoder(bytes.NewReader(text))):
		case !valid && err == nil && json.NewDecoder(bytes.NewReader(text)).Decode(&groupList{}) == nil: // more follows
		case !valid && err == nil:
			t.Errorf("%q: no error", text)
		case err == nil:
			if want := list.answer(); !reflect.DeepEqual(a, want) {
				t.Errorf("%q: %+v, want %+v", text, a, want)
			}
		case valid && !errors.Is(err, errTooOld) && !strings.Contains(err.Error(), "is not 1 to 63") && !strings.Contains(err.Error(), "more than") && !strings.Contains(err.Error(), "too many"):
			t.Errorf("%q: %v", text, err)
		}
	})
}
