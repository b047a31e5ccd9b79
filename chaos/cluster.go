package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"meshrelay/internal/testing/fakekube"
)

const (
	// clusterPage is how many objects a page of a list has at most, so that lists have several.
	clusterPage = 40
	// ownUID and otherUID begin the UIDs of kube-system of a cluster, and of another one behind its address. Its name
	// follows: upstreams of one UID count as one cluster.
	ownUID, otherUID = "own", "another"
	// aliens is how many objects another cluster has.
	aliens = 40
	// alienSeq is the number of a content that no source has made.
	alienSeq = 999_999_999
	// spoiltField marks an object whose content can not be decoded.
	spoiltField = "chaosSpoilt"
)

// collections are the plurals of the kinds, in their order.
var collections = []string{"serviceentries", "virtualservices", "authorizationpolicies", "workloadentries"}

func collectionOf(key int) string {
	return kinds[key%len(kinds)].group + "/" + collections[key%len(kinds)]
}

// cluster is the API server of a source. Its methods but sent are called by the goroutine that does
// the changes and faults.
type cluster struct {
	name       string
	source     *source
	address    string
	kubeconfig string // a path
	fake       *fakekube.Server
	cert       tls.Certificate
	// spoils reports whether the content of a key can not be decoded now; nil: none.
	spoils func(key int) bool
	how    int    // an object can not be decoded
	tokens int    // that there have been
	newest int    // version that the server ever had
	front  string // address of the link to the server
	// astray: what the server has is not what the source has. The lock of fake guards it.
	astray bool

	server  *http.Server // nil while none runs
	done    chan struct{}
	serving sync.WaitGroup // requests
}

func newCluster(name string, s *source, address, dir string) (*cluster, error) {
	c := &cluster{name: name, source: s, address: address, fake: fakekube.New(), kubeconfig: filepath.Join(dir, name+".kubeconfig")}
	c.fake.UID, c.fake.Page, c.fake.Sent = ownUID+"-"+name, clusterPage, c.sent
	for i, k := range kinds {
		c.fake.Define(k.group, k.name, collections[i], k.versions...)
	}
	if p := s.world.pods; p != nil {
		c.fake.Define("", "Service", "services", "v1")
		c.fake.Define("", "Pod", "pods", "v1")
		c.fake.Define("", "Node", "nodes", "v1")
		c.fake.Define("discovery.k8s.io", "EndpointSlice", "endpointslices", "v1")
		p.clusters = append(p.clusters, c)
		p.restore(s.number)
	}
	var err error
	c.cert, err = selfSigned(host())
	return c, err
}

// selfSigned returns a certificate for an IP address.
func selfSigned(ip string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "chaos"}, IPAddresses: []net.IP{net.ParseIP(ip)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(7 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// start serves on the cluster's address, and stop ends that as a crash would.
func (c *cluster) start() error {
	lis, err := net.Listen("tcp", c.address)
	if err != nil {
		return fmt.Errorf("API server %s: %w", c.name, err)
	}
	server, done := &http.Server{
		Handler: http.HandlerFunc(c.serve), TLSConfig: &tls.Config{Certificates: []tls.Certificate{c.cert}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}, make(chan struct{})
	c.server, c.done = server, done
	go func() {
		defer close(done)
		_ = server.ServeTLS(lis, "", "") // it ends with stop
	}()
	return nil
}

func (c *cluster) serve(w http.ResponseWriter, r *http.Request) {
	c.serving.Add(1)
	defer c.serving.Done()
	c.fake.ServeHTTP(w, r)
}

func (c *cluster) stop() {
	if c.server == nil {
		return
	}
	c.server.Close() // it is to be gone
	<-c.done
	c.serving.Wait()
	c.server = nil
}

// restart ends what runs, changes the server while it is down, and starts it.
func (c *cluster) restart(change func()) error {
	c.stop()
	change()
	return c.start()
}

// renew has the server accept another token only. The kubeconfig gets it from writeKubeconfig.
func (c *cluster) renew() {
	c.tokens++
	c.fake.Set(func() { c.fake.Token = c.token() })
}

func (c *cluster) token() string { return fmt.Sprintf("token-%d", c.tokens) }

// writeKubeconfig writes a kubeconfig with the present token.
func (c *cluster) writeKubeconfig() error {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Certificate[0]})
	text, err := json.Marshal(map[string]any{ // JSON is YAML
		"apiVersion": "v1", "kind": "Config", "current-context": c.name,
		"clusters": []any{map[string]any{"name": c.name, "cluster": map[string]any{"server": "https://" + c.front, "certificate-authority-data": ca}}},
		"users":    []any{map[string]any{"name": "relay", "user": map[string]any{"token": c.token()}}},
		"contexts": []any{map[string]any{"name": c.name, "context": map[string]any{"cluster": c.name, "user": "relay"}}},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.kubeconfig+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(c.kubeconfig+".new", c.kubeconfig)
}

// follow brings the object of a key to what the source has, unless the server has gone astray.
func (c *cluster) follow(key int) error {
	if c.astray {
		return nil
	}
	w := c.source.world
	w.mu.Lock()
	it := c.source.items[key]
	if it == nil {
		w.mu.Unlock()
		return nil
	}
	seq, present := it.seq, it.present
	w.mu.Unlock()
	if !present {
		c.fake.Remove(collectionOf(key), keyName(key))
		return nil
	}
	o, err := c.object(key, seq)
	if err != nil {
		return err
	}
	c.fake.Put(collectionOf(key), o)
	return nil
}

// object returns a content as a server has it, or what is left of it.
func (c *cluster) object(key, seq int) (map[string]any, error) {
	o, err := manifest(c.source.name, key, seq)
	if err != nil || c.spoils == nil || !c.spoils(key) {
		return o, err
	}
	o[spoiltField] = true
	meta := o["metadata"].(map[string]any)
	switch c.how % 5 {
	case 0:
		o["spec"] = "text where a message is expected"
	case 1:
		o["spec"] = map[string]any{"hosts": 42, "http": "no list", "rules": 1, "address": []any{}}
	case 2:
		meta["labels"] = []any{"no", "map"}
	case 3:
		meta["creationTimestamp"] = "the day before yesterday"
	case 4:
		meta["annotations"] = map[string]any{markerAnnotation: map[string]any{"not": "a text"}}
	}
	return o, nil
}

// stray empties the server, or makes it one of another cluster. It runs nothing meanwhile.
func (c *cluster) stray(uid string, version int) error {
	c.fake.Set(func() {
		c.astray = true
		c.fake.UID, c.fake.Version = uid+"-"+c.source.name, version
		c.fake.Objects = map[string]map[string]map[string]any{}
	})
	if uid == ownUID {
		c.fake.Compact()
		return nil
	}
	for key := range aliens {
		o, err := manifest(c.source.name, key, alienSeq)
		if err != nil {
			return err
		}
		c.fake.Put(collectionOf(key), o)
	}
	return nil
}

// restore gives the server what the source has. version is later than all before.
func (c *cluster) restore(version int) error {
	c.fake.Set(func() {
		c.astray = false
		c.fake.UID, c.fake.Version = ownUID+"-"+c.source.name, version
		c.fake.Objects = map[string]map[string]map[string]any{}
	})
	for _, key := range c.source.present() {
		if err := c.follow(key); err != nil {
			return err
		}
	}
	if p := c.source.world.pods; p != nil {
		p.restore(c.source.number)
	}
	c.fake.Compact()
	return nil
}

// sent records what the server sends. It is called with the lock of fake.
func (c *cluster) sent(sending fakekube.Sending) {
	if c.astray {
		return
	}
	w := c.source.world
	w.mu.Lock()
	defer w.mu.Unlock()
	listed := map[int]bool{}
	for _, e := range sending.Events {
		meta := e.Object["metadata"].(map[string]any)
		key, ok := parseKeyName(fmt.Sprint(meta["namespace"], "/", meta["name"]))
		if !ok {
			continue
		}
		listed[key] = true
		switch {
		case e.Kind == "DELETED":
			c.source.record(key, c.source.items[key].newest.seq, false)
		case e.Object[spoiltField] == nil:
			is, ok := w.parseMarker(meta["annotations"].(map[string]string)[markerAnnotation])
			if ok {
				c.source.record(key, is.seq, true)
			}
		}
	}
	if !sending.Whole {
		return
	}
	for kind := range kinds {
		if collectionOf(kind) != sending.Of {
			continue
		}
		for _, key := range c.source.byKind[kind] {
			if !listed[key] {
				c.source.record(key, c.source.items[key].newest.seq, false)
			}
		}
	}
}

// manifest returns a content as people and API servers write it.
func manifest(source string, key, seq int) (map[string]any, error) {
	spec, err := protojson.Marshal(makeBody(source, key, seq))
	if err != nil {
		return nil, err
	}
	k, m := kinds[key%len(kinds)], makeMetadata(source, key, seq)
	namespace, name, _ := strings.Cut(m.Name, "/")
	return map[string]any{
		"apiVersion": k.group + "/" + k.versions[0], "kind": k.name,
		"metadata": map[string]any{
			"name": name, "namespace": namespace, "labels": m.Labels, "annotations": m.Annotations,
			"creationTimestamp": m.CreateTime.AsTime().Format(time.RFC3339),
		},
		"spec": json.RawMessage(spec),
	}, nil
}
