package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
)

// inAnyOrder are the lists whose order means nothing to an Envoy.
var inAnyOrder = map[protoreflect.FullName]bool{
	"envoy.config.route.v3.RouteConfiguration.virtual_hosts":    true, // the most specific domain wins
	"envoy.config.route.v3.VirtualHost.domains":                 true,
	"envoy.config.listener.v3.Listener.filter_chains":           true, // the most specific match wins
	"envoy.config.endpoint.v3.ClusterLoadAssignment.endpoints":  true,
	"envoy.config.endpoint.v3.LocalityLbEndpoints.lb_endpoints": true,
}

// remaining are the differences that are none of the relay's, and what makes the two sides
// equal nevertheless.
var remaining = []struct {
	what, why string
	message   protoreflect.FullName
	apply     func(proto.Message)
}{
	{
		what: "the version of a WasmPlugin, in the environment of its VM",
		why: "a proxy's agent asks for the image again when it changes, and compares it with nothing else. " +
			"An istiod that reads files makes it of the time, the relay of the content (S10).",
		message: "envoy.extensions.wasm.v3.EnvironmentVariables",
		apply: func(m proto.Message) {
			values := m.(*wasmv3.EnvironmentVariables).KeyValues
			if values[wasmVersion] != "" {
				values[wasmVersion] = "some version"
			}
		},
	},
	{
		what: "a short host among the sniHosts of a VirtualService",
		why: "an istiod does not complete it, and does not take the VirtualService unless one of its hosts, which " +
			"the relay completes, covers it. The name that a client has to send is the complete one.",
		message: "envoy.config.listener.v3.FilterChain",
		apply: func(m proto.Message) {
			chain := m.(*listenerv3.FilterChain)
			config := chain.GetMetadata().GetFilterMetadata()["istio"].GetFields()["config"].GetStringValue()
			names := chain.GetFilterChainMatch().GetServerNames()
			for i, name := range names {
				if of := virtualServicePath.FindStringSubmatch(config); of != nil && !strings.Contains(name, ".") && name != "*" {
					names[i] = full(name, of[1])
				}
				if complete := serviceHost.FindStringSubmatch(name); complete != nil && config == "" {
					names[i] = complete[1] // at a gateway, which is not told of the namespace
				}
			}
		},
	},
	{
		what: "a virtual host, on ports that its service does not have, of a short host that a wildcard of its VirtualService covers",
		why: "complete, an istiod takes the two for duplicates and refuses the VirtualService, so that the relay lists " +
			"the wildcard alone. It makes virtual hosts of services, and those are the same.",
		message: "envoy.config.route.v3.RouteConfiguration",
		apply: func(m proto.Message) {
			routes := m.(*routev3.RouteConfiguration)
			routes.VirtualHosts = slices.DeleteFunc(routes.VirtualHosts, func(h *routev3.VirtualHost) bool {
				return h.Name == coveredHost+":80"
			})
		},
	},
}

// coveredHost is the short host of the fixed set that a wildcard beside it covers, complete.
const coveredHost = "productpage.canary.svc.cluster.local"

var serviceHost = regexp.MustCompile(`^([^.]+)\.[^.]+\.svc\.cluster\.local$`)

var virtualServicePath = regexp.MustCompile(`^/apis/networking\.istio\.io/v1(?:alpha3)?/namespaces/([^/]+)/virtual-service/`)

const wasmVersion = "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION"

var deterministic = proto.MarshalOptions{Deterministic: true}

func encoded(m proto.Message) []byte {
	b, err := deterministic.Marshal(m)
	if err != nil {
		panic(err) // of a message that was decoded
	}
	return b
}

// canonical returns a copy in which the order of lists in any order, and what is in
// remaining, makes no difference.
func canonical(m proto.Message) proto.Message {
	m = proto.Clone(m)
	canonicalize(m.ProtoReflect())
	return m
}

func canonicalize(m protoreflect.Message) {
	if a, ok := m.Interface().(*anypb.Any); ok {
		if inner, err := a.UnmarshalNew(); err == nil {
			canonicalize(inner.ProtoReflect())
			a.Value = encoded(inner)
		}
		return
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if field.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					canonicalize(v.Message())
					return true
				})
			}
		case field.IsList():
			if field.Message() != nil {
				for i := range v.List().Len() {
					canonicalize(v.List().Get(i).Message())
				}
			}
			if inAnyOrder[field.FullName()] {
				sortList(v.List(), field)
			}
		case field.Message() != nil:
			canonicalize(v.Message())
		}
		return true
	})
	for _, r := range remaining {
		if r.message == m.Descriptor().FullName() {
			r.apply(m.Interface())
		}
	}
}

func sortList(l protoreflect.List, field protoreflect.FieldDescriptor) {
	type element struct {
		key   []byte
		value protoreflect.Value
	}
	all := make([]element, l.Len())
	for i := range all {
		all[i].value = l.Get(i)
		if field.Message() != nil {
			all[i].key = encoded(all[i].value.Message().Interface())
		} else {
			all[i].key = []byte(all[i].value.String())
		}
	}
	slices.SortStableFunc(all, func(a, b element) int { return bytes.Compare(a.key, b.key) })
	for i, e := range all {
		l.Set(i, e.value)
	}
}

// mismatch is a resource that differs. Either side may be nil.
type mismatch struct {
	proxy, typeURL, name string
	direct, fed          proto.Message
	diff                 string
}

func (m mismatch) kind() string { return m.typeURL[strings.LastIndex(m.typeURL, ".")+1:] }

func (m mismatch) String() string {
	return fmt.Sprintf("%s: %s %s: %s", m.proxy, m.kind(), m.name, m.diff)
}

// compare returns how what a proxy is sent by a fed istiod differs from what the istiod
// sends it that reads the files.
func compare(proxy string, direct, fed envoyConfig) (all []mismatch) {
	for _, typeURL := range []string{cdsType, edsType, ldsType, rdsType, ecdsType} {
		names := map[string]bool{}
		for name := range direct[typeURL] {
			names[name] = true
		}
		for name := range fed[typeURL] {
			names[name] = true
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			m := mismatch{proxy: proxy, typeURL: typeURL, name: name, direct: direct[typeURL][name], fed: fed[typeURL][name]}
			if m.diff = difference(m.direct, m.fed); m.diff != "" {
				all = append(all, m)
			}
		}
	}
	return all
}

// difference tells how two resources differ; it is empty if they do not.
func difference(direct, fed proto.Message) string {
	switch {
	case fed == nil:
		return "the fed istiod has none"
	case direct == nil:
		return "only the fed istiod has it"
	}
	a, b := canonical(direct), canonical(fed)
	if bytes.Equal(encoded(a), encoded(b)) {
		return ""
	}
	if diff := cmp.Diff(a, b, protocmp.Transform()); diff != "" {
		return "(- reads the files, + is fed)\n" + diff
	}
	return "it is encoded otherwise"
}
