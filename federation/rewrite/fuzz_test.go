package rewrite

import (
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/mirror"
)

// FuzzNames looks for text that makes a mapping of names panic, grow without reason or
// touch what no rule covers.
func FuzzNames(f *testing.F) {
	for _, s := range []string{
		"", "*", ".", "/", "a/b", "./gw", "gw.ns.svc.cluster.local", "r.team-a.svc.cluster.local:80", "*.corp", "td/ns/team-a/sa/x", "*ns/",
		"td/ns/", "td/ns/*", "outbound|80||r.team-a.svc", "https.443.p.gw.ns", "http://u@h:1/p?q", "://", "a:*", "[::1]:1", ".svc", "..svc", "team-*", "[", "\\",
	} {
		f.Add(s)
	}
	rules, err := New(everything)
	if err != nil {
		f.Fatal(err)
	}
	same, err := New(Rules{Namespaces: map[string]string{"team-a": "team-a"}, Hosts: map[string]string{"corp": "corp"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, v string) {
		functions := map[string]func(*scope, string) string{
			"host": (*scope).host, "shortHost": (*scope).shortHost, "hostPort": (*scope).hostPort,
			"url": (*scope).url, "cluster": (*scope).cluster, "routeConfiguration": (*scope).routeConfiguration, "gateway": (*scope).gateway,
			"visibility": (*scope).visibility, "serviceAccount": (*scope).serviceAccount,
			"namespacedHost":   func(s *scope, v string) string { to, _ := s.namespacedHost(v); return to },
			"hostPattern":      func(s *scope, v string) string { to, _ := s.hostPattern(v); return to },
			"namespacePattern": func(s *scope, v string) string { to, _ := s.namespacePattern(v); return to },
			"principal":        func(s *scope, v string) string { to, _ := s.principal(v); return to },
		}
		for name, f := range functions {
			if got := f(newScope(same.names, "team-a"), v); got != v {
				t.Errorf("%s(%q) = %q under rules that change nothing", name, v, got)
			}
			got := f(newScope(rules.names, "team-a"), v)
			if utf8.ValidString(v) && !utf8.ValidString(got) {
				t.Errorf("%s(%q) = %q is not UTF-8", name, v, got)
			}
			if len(got) > len(v)+64 {
				t.Errorf("%s(%q) = %q has grown", name, v, got)
			}
			if strings.Count(got, "/") != strings.Count(v, "/") {
				t.Errorf("%s(%q) = %q: another number of slashes", name, v, got)
			}
		}
	})
}

// FuzzRewriteBody looks for bodies that make a rewrite panic or give what is no resource.
func FuzzRewriteBody(f *testing.F) {
	w, err := New(everything)
	if err != nil {
		f.Fatal(err)
	}
	for i, info := range mirror.Kinds() {
		b, _ := proto.Marshal(info.NewBody())
		f.Add(i, b)
	}
	f.Add(0, []byte{10, 1, 'a'})
	f.Fuzz(func(t *testing.T, n int, value []byte) {
		kinds := mirror.Kinds()
		info := kinds[((n%len(kinds))+len(kinds))%len(kinds)]
		url := "type.googleapis.com/" + string(info.NewBody().ProtoReflect().Descriptor().FullName())
		in, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: info.Kind, Namespace: "team-a", Name: "x"}, Body: &anypb.Any{TypeUrl: url, Value: value}})
		if err != nil {
			return
		}
		out, err := w.Rewrite(in)
		if err != nil {
			return
		}
		if info.Kind != mirror.MeshConfig && out.Key() != w.Key(in.Key()) {
			t.Errorf("%s landed at %s", in.Key(), out.Key())
		}
	})
}
