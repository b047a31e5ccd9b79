package mirror

import (
	"slices"
	"strings"
	"testing"
)

// asked are the types that istiods of both ages subscribe to.
const asked = `core/v1alpha1/MeshConfig
security.istio.io/v1beta1/AuthorizationPolicy security.istio.io/v1/AuthorizationPolicy
security.istio.io/v1beta1/PeerAuthentication security.istio.io/v1/PeerAuthentication
security.istio.io/v1beta1/RequestAuthentication security.istio.io/v1/RequestAuthentication
networking.istio.io/v1alpha3/DestinationRule networking.istio.io/v1/DestinationRule
networking.istio.io/v1alpha3/Gateway networking.istio.io/v1/Gateway
networking.istio.io/v1alpha3/ServiceEntry networking.istio.io/v1/ServiceEntry
networking.istio.io/v1alpha3/Sidecar networking.istio.io/v1/Sidecar
networking.istio.io/v1alpha3/VirtualService networking.istio.io/v1/VirtualService
networking.istio.io/v1alpha3/WorkloadEntry networking.istio.io/v1/WorkloadEntry
networking.istio.io/v1alpha3/WorkloadGroup networking.istio.io/v1/WorkloadGroup
networking.istio.io/v1alpha3/EnvoyFilter networking.istio.io/v1beta1/ProxyConfig
telemetry.istio.io/v1alpha1/Telemetry telemetry.istio.io/v1/Telemetry
extensions.istio.io/v1alpha1/WasmPlugin extensions.istio.io/v1alpha1/TrafficExtension
gateway.networking.k8s.io/v1/GRPCRoute gateway.networking.k8s.io/v1beta1/Gateway gateway.networking.k8s.io/v1/Gateway
gateway.networking.k8s.io/v1beta1/GatewayClass gateway.networking.k8s.io/v1/GatewayClass
gateway.networking.k8s.io/v1beta1/HTTPRoute gateway.networking.k8s.io/v1/HTTPRoute gateway.networking.k8s.io/v1beta1/ReferenceGrant
gateway.networking.k8s.io/v1alpha2/TCPRoute gateway.networking.k8s.io/v1/TCPRoute gateway.networking.k8s.io/v1alpha2/TLSRoute
gateway.networking.k8s.io/v1/TLSRoute gateway.networking.k8s.io/v1alpha2/UDPRoute gateway.networking.k8s.io/v1/BackendTLSPolicy
gateway.networking.k8s.io/v1/ListenerSet gateway.networking.x-k8s.io/v1alpha1/XBackend gateway.networking.x-k8s.io/v1alpha1/XBackendTrafficPolicy`

func TestEveryTypeThatIstiodsAskForIsServed_C1_S13(t *testing.T) {
	served := map[string]bool{}
	for _, info := range Kinds() {
		for _, url := range info.TypeURLs() {
			kind, version, err := ParseTypeURL(url)
			if err != nil || kind != info.Kind || kind.TypeURL(version) != url {
				t.Errorf("%s reads as %v %s: %v", url, kind, version, err)
			}
			served[url] = true
		}
		if info.NewBody() == nil || info.Plural == "" || info.Kind.PreferredTypeURL() != info.TypeURLs()[0] {
			t.Errorf("%v is not complete", info.Kind)
		}
	}
	for _, url := range strings.Fields(asked) {
		if !served[url] {
			t.Errorf("%s is not served", url)
		}
	}
}

func TestReferencedKindsComeFirst_S20(t *testing.T) {
	order := []string{"MeshConfig", "WorkloadEntry", "ServiceEntry", "DestinationRule", "Gateway", "VirtualService"}
	var kinds []Kind
	for _, k := range order {
		kinds = append(kinds, MatchKinds(k)[0].Kind)
	}
	if !slices.IsSortedFunc(kinds, CompareKinds) {
		t.Errorf("%v are not in order", kinds)
	}
	unknown := []Kind{{"a.example", "A"}, {"b.example", "B"}}
	if CompareKinds(kinds[5], unknown[0]) >= 0 || CompareKinds(unknown[1], unknown[0]) <= 0 || CompareKinds(unknown[0], kinds[0]) <= 0 {
		t.Error("unknown kinds do not come last, by name")
	}
}

func TestKindsAreFoundAsKubectlFindsThem(t *testing.T) {
	for word, want := range map[string]string{
		"se": "networking.istio.io/ServiceEntry", "ServiceEntries": "networking.istio.io/ServiceEntry",
		"virtualservice.networking.istio.io": "networking.istio.io/VirtualService",
		"gateways":                           "networking.istio.io/Gateway gateway.networking.k8s.io/Gateway",
		"gtw":                                "gateway.networking.k8s.io/Gateway", "pods": "",
	} {
		var got []string
		for _, info := range MatchKinds(word) {
			got = append(got, info.Kind.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s is %v, want %s", word, got, want)
		}
	}
}

func FuzzParseTypeURL(f *testing.F) {
	f.Add("networking.istio.io/v1/ServiceEntry")
	f.Add("core/v1alpha1/MeshConfig")
	f.Fuzz(func(t *testing.T, url string) {
		kind, version, err := ParseTypeURL(url)
		if err == nil && kind.TypeURL(version) != url {
			t.Fatalf("%q is %v %q, which is %q", url, kind, version, kind.TypeURL(version))
		}
	})
}
