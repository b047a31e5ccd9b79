package services

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/federation"
	endpoints "meshrelay/federation/services"
	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/object"
)

// many are 5,000 Services of 10 pods, in 20 namespaces.
const many, podsEach = 5000, 10

func decodedOf(tb testing.TB, in Input, namespace, name string, labels map[string]string, spec, status string) object.Input {
	d, err := Decode(in, &object.Object{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}, Spec: []byte(spec), Status: []byte(status)})
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func podOf(tb testing.TB, i, n, version int) object.Input {
	namespace, name := fmt.Sprintf("team-%02d", i%20), fmt.Sprintf("service-%04d", i)
	return decodedOf(tb, Pods, namespace, fmt.Sprintf("%s-%d", name, n), map[string]string{"app": name, "version": fmt.Sprint(version), "security.istio.io/tlsMode": "istio"},
		`{"nodeName":"n1","serviceAccountName":"default"}`, fmt.Sprintf(`{"phase":"Running","podIP":"10.%d.%d.%d","conditions":[{"type":"Ready","status":"True"}]}`, n, i>>8, i&255))
}

// manyServices returns a State of them, with all clusters that there are.
func manyServices(tb testing.TB) (s *State, clusters map[string]struct{}) {
	s, clusters = New(Options{}), map[string]struct{}{}
	s.Set(decodedOf(tb, Nodes, "", "n1", map[string]string{"topology.kubernetes.io/region": "region-1", "topology.kubernetes.io/zone": "a"}, "", ""))
	for i := range many {
		namespace, name := fmt.Sprintf("team-%02d", i%20), fmt.Sprintf("service-%04d", i)
		s.Set(decodedOf(tb, Services, namespace, name, nil, `{"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1"],"selector":{"app":"`+name+`"},"ports":[{"name":"http","port":80,"targetPort":8080,"protocol":"TCP"}]}`, ""))
		list := ""
		for n := range podsEach {
			s.Set(podOf(tb, i, n, 1))
			list += fmt.Sprintf(`,{"addresses":["10.%d.%d.%d"],"conditions":{"ready":true},"nodeName":"n1","zone":"a","targetRef":{"kind":"Pod","namespace":%q,"name":"%s-%d"}}`, n, i>>8, i&255, namespace, name, n)
		}
		s.Set(decodedOf(tb, Slices, namespace, name+"-x", map[string]string{"kubernetes.io/service-name": name}, `{"addressType":"IPv4","endpoints":[`+list[1:]+`],"ports":[{"name":"http","port":8080}]}`, ""))
		clusters[fmt.Sprintf("outbound|80||%s.%s.svc.cluster.local", name, namespace)] = struct{}{}
	}
	for in := range inputs {
		s.Synced(in)
	}
	s.Want(clusters)
	return s, clusters
}

func bodyOf(tb testing.TB, out *Output) *anypb.Any {
	body := &anypb.Any{}
	if err := anypb.MarshalFrom(body, out.Body, proto.MarshalOptions{Deterministic: true}); err != nil {
		tb.Fatal(err)
	}
	return body
}

func BenchmarkFirstFlushOf5000Services(b *testing.B) {
	s, _ := manyServices(b)
	b.ReportAllocs()
	for b.Loop() {
		s.All()
	}
}

func BenchmarkEndpointsOf5000Services(b *testing.B) {
	s, clusters := manyServices(b)
	b.ReportAllocs()
	for b.Loop() {
		for c := range clusters {
			s.Endpoints(c)
		}
	}
}

func BenchmarkChangeOfAPodBeside5000Services(b *testing.B) {
	s, _ := manyServices(b)
	s.Flush()
	versions := [2]object.Input{podOf(b, 7, 3, 1), podOf(b, 7, 3, 2)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.Set(versions[i%2])
		if _, clusters := s.Flush(); i > 0 && len(clusters) != 1 {
			b.Fatal(clusters)
		}
		s.Endpoints("outbound|80||service-0007.team-07.svc.cluster.local")
	}
}

func BenchmarkStatusOfAPodBeside5000Services(b *testing.B) {
	s, _ := manyServices(b)
	s.Flush()
	same := podOf(b, 7, 3, 1)
	b.ReportAllocs()
	for b.Loop() {
		s.Set(same)
		if changes, clusters := s.Flush(); len(changes)+len(clusters) > 0 {
			b.Fatal(changes, clusters)
		}
	}
}

// BenchmarkFoldEndpointsOfAService folds ten endpoints into a ServiceEntry.
func BenchmarkFoldEndpointsOfAService(b *testing.B) {
	s, _ := manyServices(b)
	out := s.All()[0]
	all, _ := s.Endpoints("outbound|80||" + out.Body.Hosts[0])
	r, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: federation.ServiceEntry, Namespace: out.Key.Namespace, Name: out.Key.Name}, Body: bodyOf(b, out)})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := endpoints.WithEndpoints(r, endpoints.Assignments{80: all}, ""); err != nil {
			b.Fatal(err)
		}
	}
}
