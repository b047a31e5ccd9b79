// Command nacos is a small server that speaks MCP-over-xDS as a Nacos does, for the example and the tests. It
// takes instances as Nacos' HTTP API does:
//
//	curl -X POST 'http://127.0.0.1:8848/nacos/v1/ns/instance?serviceName=orders&ip=10.1.0.1&port=8080'
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"meshrelay/internal/testing/fakexds"
)

func main() {
	api := flag.String("http", "127.0.0.1:8848", "where to take instances")
	address := flag.String("xds", "127.0.0.1:18848", "where to serve MCP-over-xDS")
	higress := flag.Bool("higress", false, "answer as Higress' controller does")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *api, *address, *higress); err != nil {
		log.Fatal("nacos: ", err)
	}
}

func run(ctx context.Context, api, address string, higress bool) error {
	lis, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	r, nacos := &registry{services: map[fakexds.Service][]fakexds.Instance{}}, &fakexds.Nacos{}
	r.changed = func(s fakexds.Service) { nacos.Put(s, r.services[s]...) }
	serve := func() error { return nacos.Serve(ctx, lis) }
	if higress {
		server := fakexds.NewHigress(lis)
		r.changed = func(fakexds.Service) {
			var all []fakexds.Resource
			for s, instances := range r.services {
				all = append(all, s.Higress(instances...))
			}
			server.Set(fakexds.RegistryType, all...)
			server.Push(fakexds.RegistryType)
		}
		serve = func() error { return server.Serve(ctx) }
	}
	web := &http.Server{Addr: api, ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(r.instance)}
	defer context.AfterFunc(ctx, func() { web.Close() })()
	ended := make(chan error, 2)
	go func() { ended <- serve() }()
	go func() { ended <- web.ListenAndServe() }()
	if err := <-ended; ctx.Err() == nil {
		return err
	}
	return nil
}

// registry has the instances of services.
type registry struct {
	mu       sync.Mutex
	services map[fakexds.Service][]fakexds.Instance
	changed  func(fakexds.Service) // the caller holds mu
}

// instance adds, changes or removes an instance, as /nacos/v1/ns/instance does.
func (r *registry) instance(w http.ResponseWriter, req *http.Request) {
	q := req.URL.Query()
	s, i, err := parse(q)
	if err == nil && req.URL.Path != "/nacos/v1/ns/instance" {
		err = errors.New("there is only /nacos/v1/ns/instance")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.IndexFunc(r.services[s], func(o fakexds.Instance) bool { return o.IP == i.IP && o.Port == i.Port })
	all := slices.Clone(r.services[s])
	switch {
	case req.Method == http.MethodDelete && at >= 0:
		all = slices.Delete(all, at, at+1)
	case req.Method == http.MethodDelete:
	case at >= 0:
		all[at] = i
	default:
		all = append(all, i)
	}
	if r.services[s] = all; len(all) == 0 {
		delete(r.services, s)
	}
	r.changed(s)
	fmt.Fprint(w, "ok")
}

func parse(q url.Values) (s fakexds.Service, i fakexds.Instance, err error) {
	or := func(name, otherwise string) string {
		if q.Get(name) != "" {
			return q.Get(name)
		}
		return otherwise
	}
	s = fakexds.Service{Namespace: or("namespaceId", "public"), Group: or("groupName", "DEFAULT_GROUP"), Name: q.Get("serviceName"), Kind: or("kind", "nacos")}
	port, err := strconv.ParseUint(q.Get("port"), 10, 16)
	if err != nil || s.Name == "" || q.Get("ip") == "" {
		return s, i, errors.New("give serviceName, ip and port")
	}
	weight, err := strconv.ParseUint(or("weight", "1"), 10, 16)
	if err == nil && q.Get("metadata") != "" {
		err = json.Unmarshal([]byte(q.Get("metadata")), &i.Metadata)
	}
	i.IP, i.Port, i.Weight = q.Get("ip"), uint32(port), uint32(weight)
	i.Unhealthy, i.Disabled = q.Get("healthy") == "false", q.Get("enabled") == "false"
	return s, i, err
}
