package bundle

import (
	"regexp"
	"strings"
	"testing"
)

func TestNamesAreHidden(t *testing.T) {
	for _, text := range []string{
		`{"namespace":"canary","name":"db"}`, `{"host": "canary"}`, `namespace=canary`, `msg="x" host=canary`, `resource="networking.istio.io/ServiceEntry canary/canary"`,
		"dial tcp: lookup canary.example.com: no such host", "canary.example.com:15012", `"*.canary.example"`, `"namespaces": ["shop", "canary"]`,
		"spiffe://canary/ns/canary/sa/canary", "upstream east: ServiceEntry canary/x: spec.hosts: bad", `"{\"namespace\":\"canary\"}"`, "told", "told/x", "x-told.local", "(told)", "sidecar~10.0.0.1~pod.told-ns~told-ns.svc.cluster.local",
		"10.1.2.3:15010", "ref-ns/ref-name",
	} {
		n := NewNames([]byte("key"))
		n.Add("told")
		n.AddNode("sidecar~10.0.0.1~pod.told-ns~told-ns.svc.cluster.local")
		n.AddRef("+networking.istio.io/ServiceEntry ref-ns/ref-name")
		got := string(n.Hide([]byte(text)))
		for _, bad := range []string{"canary", "told/", "(told", "told-ns", "10.1.2.3", "10.0.0.1", "ref-n"} {
			if strings.Contains(got, bad) || got == "told" {
				t.Errorf("%s became %s", text, got)
			}
		}
	}
}

func TestWordsThatAreNoNamesStay(t *testing.T) {
	n := NewNames([]byte("key"))
	n.Keep("east")
	n.Add("east", "7", "1.5", "x", "state", "default", "istio-system", "clients", "true", "networking.istio.io")
	for _, text := range []string{
		`{"clients":3,"state":"held","time":"2026-11-22T19:34:40.123456Z"}`, "clients=7 upstream=east type=networking.istio.io/v1/ServiceEntry", "v1.2.3-dev.abc go1.26.8 1.5e+06 20.5ms 0.005",
		"127.0.0.1:15014 0.0.0.0 localhost", "open /etc/relay/relay.yaml: no such file", "k8s.io/api security.istio.io meshrelay.io/from", `relay_x{le="0.5"} 1.5`, "admin.address",
	} {
		if got := string(n.Hide([]byte(text))); got != text {
			t.Errorf("%s became %s", text, got)
		}
	}
}

// TestANameHasOneHash: in every text, in any case, and another one under another key.
func TestANameHasOneHash(t *testing.T) {
	one, other := NewNames([]byte("key")), NewNames([]byte("another"))
	one.Add("shop")
	other.Add("shop")
	got := string(one.Hide([]byte("shop/db shop.db-1 SHOP")))
	hashes := regexp.MustCompile(`name-[a-z2-7]{10}`).FindAllString(got, -1)
	if len(hashes) != 3 || hashes[0] != hashes[1] || hashes[0] != hashes[2] {
		t.Errorf("%s", got)
	}
	if again := string(other.Hide([]byte("shop"))); again == hashes[0] {
		t.Error("the hash is the same under another key")
	}
}
