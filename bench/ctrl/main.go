// Command ctrl is a relay of an API server as one writes it in a day: a cache of controller-runtime
// without types, a go-control-plane LinearCache, and go-control-plane's server. It relays
// ServiceEntries, and listens when it has all.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	typeURL     = "networking.istio.io/v1alpha3/ServiceEntry"
	resourceURL = "type.googleapis.com/istio.mcp.v1alpha1.Resource"
)

func main() {
	listen := flag.String("listen", "", "address to serve on")
	kubeconfig := flag.String("kubeconfig", "", "how the API server is reached")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctrllog.SetLogger(logr.Discard())
	if err := run(ctx, *listen, *kubeconfig); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listen, kubeconfig string) error {
	b, err := os.ReadFile(kubeconfig)
	if err != nil {
		return err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(b)
	if err != nil {
		return err
	}
	config.QPS = -1
	objects, err := ctrlcache.New(config, ctrlcache.Options{})
	if err != nil {
		return err
	}
	// Only types that go-control-plane knows are sent as MCP demands.
	linear := cache.NewLinearCache(resource.ClusterType)
	failed := make(chan error, 2)
	go func() { failed <- objects.Start(ctx) }()
	kind := &unstructured.Unstructured{}
	kind.SetGroupVersionKind(schema.GroupVersionKind{Group: "networking.istio.io", Version: "v1", Kind: "ServiceEntry"})
	informer, err := objects.GetInformer(ctx, kind)
	if err != nil {
		return err
	}
	handled, err := informer.AddEventHandler(handlers(linear))
	if err != nil {
		return err
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), handled.HasSynced) {
		return ctx.Err()
	}
	lis, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	grpcServer := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(grpcServer, ads{server.NewServer(ctx, linear, nil)})
	go func() { failed <- grpcServer.Serve(lis) }()
	defer grpcServer.Stop()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// handlers brings a cache to what the API server has.
func handlers(linear *cache.LinearCache) toolscache.ResourceEventHandler {
	have := map[string]*mcp.Resource{}
	put := func(o any) {
		u := o.(*unstructured.Unstructured)
		name := u.GetNamespace() + "/" + u.GetName()
		r, err := convert(name, u)
		if err != nil {
			log.Printf("%s: %v", name, err)
			return
		}
		if was, ok := have[name]; ok && same(was, r) {
			return
		}
		have[name] = r
		if err := linear.UpdateResources(map[string]types.Resource{name: r}, nil); err != nil {
			log.Printf("%s: %v", name, err)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    put,
		UpdateFunc: func(_, o any) { put(o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if u, ok := o.(*unstructured.Unstructured); ok {
				name := u.GetNamespace() + "/" + u.GetName()
				delete(have, name)
				if err := linear.UpdateResources(nil, []string{name}); err != nil {
					log.Printf("%s: %v", name, err)
				}
			}
		},
	}
}

// same compares everything but the version, which each write of a status changes.
func same(a, b *mcp.Resource) bool {
	was := a.Metadata.Version
	a.Metadata.Version = b.Metadata.Version
	equal := proto.Equal(a, b)
	a.Metadata.Version = was
	return equal
}

func convert(name string, u *unstructured.Unstructured) (*mcp.Resource, error) {
	spec, err := json.Marshal(u.Object["spec"])
	if err != nil {
		return nil, err
	}
	entry := &networking.ServiceEntry{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(spec, entry); err != nil {
		return nil, err
	}
	body, err := anypb.New(entry)
	if err != nil {
		return nil, err
	}
	return &mcp.Resource{Body: body, Metadata: &mcp.Metadata{
		Name: name, Version: u.GetResourceVersion(), CreateTime: timestamppb.New(u.GetCreationTimestamp().Time), Labels: u.GetLabels(), Annotations: u.GetAnnotations(),
	}}, nil
}

// ads is the server behind the type that clients ask for.
type ads struct{ server.Server }

func (a ads) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return a.Server.DeltaAggregatedResources(delta{s})
}

type delta struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
}

func (s delta) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) {
	req, err := s.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Recv()
	if err == nil {
		req.TypeUrl = resource.ClusterType
	}
	return req, err
}

func (s delta) Send(resp *discoveryv3.DeltaDiscoveryResponse) error {
	resp.TypeUrl = typeURL
	for _, r := range resp.Resources {
		r.Resource.TypeUrl = resourceURL
	}
	return s.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Send(resp)
}
