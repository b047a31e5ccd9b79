package ingress

import (
	"fmt"
	"testing"
)

// many returns a State that has synced, with n Ingresses of a host each.
func many(n int) *State {
	s := New(byDefault)
	for i := range n {
		s.SetIngress(numbered(i, 80))
	}
	for i := range inputs {
		s.Synced(i)
	}
	return s
}

func numbered(i int, port int32) *Ingress {
	name := fmt.Sprintf("web-%d", i)
	return &Ingress{Name: Name{"shop", name}, Spec: Spec{
		TLS:   []TLS{{Hosts: []string{name + ".example"}, Secret: name}},
		Rules: []Rule{{Host: name + ".example", HTTP: &HTTP{[]Path{{Path: "/", Type: "Prefix", Backend: Backend{&ServiceBackend{name, Port{Number: port}}}}}}}},
	}}
}

func BenchmarkFirstFlushOf10000Ingresses(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if n := len(many(10_000).Flush()); n != 20_000 {
			b.Fatalf("%d outputs", n)
		}
	}
}

func BenchmarkChangeBeside10000Ingresses(b *testing.B) {
	b.ReportAllocs()
	s := many(10_000)
	s.Flush()
	port := int32(1)
	for b.Loop() {
		port++
		s.SetIngress(numbered(7, port))
		if n := len(s.Flush()); n != 1 {
			b.Fatalf("%d outputs", n)
		}
	}
}

func BenchmarkDecodeIngress(b *testing.B) {
	b.ReportAllocs()
	text := jsonOf(b, ingress("shop", "web", 1, "tls cert a.example", "a.example / front:http", "b.example /x back:80"))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := objectOf(b, text).ingress(); err != nil {
			b.Fatal(err)
		}
	}
}
