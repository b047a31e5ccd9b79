package newest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	api "istio.io/api/extensions/v1alpha1"
	"istio.io/istio/pilot/pkg/config/kube/extensions"
	"istio.io/istio/pilot/pkg/config/memory"
	"istio.io/istio/pkg/config"
	"istio.io/istio/pkg/config/schema/collections"
	"istio.io/istio/pkg/config/schema/gvk"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// fill sets fields of a message at random, down to a depth.
func fill(r *rand.Rand, m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if r.IntN(3) == 0 || depth == 0 && f.Kind() == protoreflect.MessageKind {
			continue
		}
		switch {
		case f.IsMap():
			for range r.IntN(3) {
				value := m.Mutable(f).Map().NewValue()
				if f.MapValue().Kind() == protoreflect.MessageKind {
					fill(r, value.Message(), depth-1)
				} else {
					value = scalar(r, f.MapValue())
				}
				m.Mutable(f).Map().Set(scalar(r, f.MapKey()).MapKey(), value)
			}
		case f.IsList():
			for range r.IntN(3) {
				if f.Kind() == protoreflect.MessageKind {
					fill(r, m.Mutable(f).List().AppendMutable().Message(), depth-1)
				} else {
					m.Mutable(f).List().Append(scalar(r, f))
				}
			}
		case f.Kind() == protoreflect.MessageKind:
			fill(r, m.Mutable(f).Message(), depth-1)
		default:
			m.Set(f, scalar(r, f))
		}
	}
}

func scalar(r *rand.Rand, f protoreflect.FieldDescriptor) protoreflect.Value {
	n := r.IntN(100)
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprint("text-", n))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n%2 == 0)
	case protoreflect.EnumKind:
		all := f.Enum().Values()
		return protoreflect.ValueOfEnum(all.Get(n % all.Len()).Number())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n))
	}
	panic("a scalar of another kind: " + f.FullName())
}

// TestWasmPluginsBringTheTrafficExtensionsOfIstiods: of WasmPlugins at random the relay makes what istiod's own code makes.
func TestWasmPluginsBringTheTrafficExtensionsOfIstiods(t *testing.T) {
	const all = 300
	r, created := rand.New(rand.NewPCG(1, 2)), time.Unix(1_700_000_000, 0).UTC()
	store := memory.NewController(memory.MakeSkipValidation(collections.PilotGatewayAPI()))
	made := map[string]*mirror.Resource{}
	for n := range all {
		plugin := &api.WasmPlugin{}
		fill(r, plugin.ProtoReflect(), 4)
		body, err := anypb.New(plugin)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("plugin-", n)
		resource, err := mirror.New(mirror.Spec{
			Key:    mirror.Key{Kind: federation.WasmPlugin, Namespace: "shop", Name: name},
			Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}, CreateTime: created, Body: body,
		})
		if err != nil {
			t.Fatal(err)
		}
		extension, err := federation.ExtensionOf(resource)
		if err != nil {
			t.Fatal(err)
		}
		made[extension.Key().Name] = extension
		if _, err := store.Create(config.Config{Meta: config.Meta{GroupVersionKind: gvk.WasmPlugin, Namespace: "shop", Name: name, CreationTimestamp: created}, Spec: plugin}); err != nil {
			t.Fatal(err)
		}
	}
	controller, stop := extensions.NewController(store, nil, nil), make(chan struct{})
	defer close(stop)
	go store.Run(stop)
	go controller.Run(stop)
	if !controller.KrtCollection(gvk.TrafficExtension).WaitUntilSynced(stop) {
		t.Fatal("istiod's code does not sync")
	}
	theirs := controller.List(gvk.TrafficExtension, "")
	if len(theirs) != all {
		t.Errorf("%d TrafficExtensions of istiod's code", len(theirs))
	}
	for _, want := range theirs {
		got := made[want.Name]
		if got == nil {
			t.Errorf("no %s", want.Name)
			continue
		}
		body := &api.TrafficExtension{}
		if err := got.Body().UnmarshalTo(body); err != nil {
			t.Fatal(err)
		}
		meta := got.Metadata()
		if !proto.Equal(body, want.Spec.(proto.Message)) || got.Namespace() != want.Namespace || !meta.CreateTime.Equal(want.CreationTimestamp) || len(meta.Labels)+len(meta.Annotations) > 0 {
			t.Errorf("%s is %v, %+v: want %v", want.Name, body, meta, want.Spec)
		}
	}
}
