package orders

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/config"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/kubernetes/apiserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inCluster runs a test with an API server in a bubble.
func inCluster(t *testing.T, f func(t *testing.T, s *fakekube.Server, c *ConfigMap)) {
	synctest.Test(t, func(t *testing.T) {
		s := fakekube.New()
		s.Define("", "ConfigMap", "configmaps", "v1")
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		fakekube.WriteKubeconfig(t, kubeconfig, s.StartInMemory(t), "")
		c := &ConfigMap{apiserver.NewClient(&apiserver.Credentials{Cluster: config.Cluster{Kubeconfig: kubeconfig}}, "test"), "istio-system"}
		c.Dial = fakekube.Dial
		t.Cleanup(c.Close)
		f(t, s, c)
	})
}

func TestAWriteHasAPreconditionAndKeepsWhatOthersHaveInTheObject(t *testing.T) {
	inCluster(t, func(t *testing.T, s *fakekube.Server, c *ConfigMap) {
		first, err := c.Read(t.Context())
		if err != nil || first.Metadata.ResourceVersion != "" {
			t.Fatalf("%+v, %v", first, err)
		}
		other, _ := c.Read(t.Context())
		first.Data["note"] = "by hand"
		if first.Data[Key], err = (State{}).Freeze("east", &Frozen{Since: start}).Encode(); err != nil {
			t.Fatal(err)
		}
		if err := c.Write(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if err := c.Write(t.Context(), other); !apierrors.IsAlreadyExists(err) {
			t.Errorf("a second one is made: %v", err)
		}
		stale, _ := c.Read(t.Context())
		first.Data["replica.a"] = "{}"
		if err := c.Write(t.Context(), first); err != nil { // it has the version of its first write
			t.Error(err)
		}
		if err := c.Write(t.Context(), stale); !apierrors.IsConflict(err) {
			t.Errorf("what was read before a change is written: %v", err)
		}
		now, err := c.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Decode(now.Data[Key]); err != nil || got.Upstreams["east"].Frozen == nil || now.Data["note"] != "by hand" {
			t.Errorf("%+v, %v", now.Data, err)
		}
	})
}

func TestAwaitEndsWithAChange(t *testing.T) {
	inCluster(t, func(t *testing.T, s *fakekube.Server, c *ConfigMap) {
		o, _ := c.Read(t.Context())
		if err := c.Write(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Await(ctx, o); err != nil || time.Since(began) != time.Minute {
			t.Errorf("without a change: %v after %v", err, time.Since(began))
		}
		ended := make(chan error)
		go func() { ended <- c.Await(t.Context(), o) }()
		synctest.Wait()
		next, _ := c.Read(t.Context())
		next.Data["replica.b"] = "{}"
		if err := errors.Join(c.Write(t.Context(), next), <-ended); err != nil || time.Since(began) > 2*time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestARefusalNamesTheRight(t *testing.T) {
	inCluster(t, func(t *testing.T, s *fakekube.Server, c *ConfigMap) {
		s.Set(func() {
			s.Fault = func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(http.StatusForbidden)
				_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`))
				return true
			}
		})
		if _, err := c.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "allow the identity to get configmaps") {
			t.Error(err)
		}
		if err := c.Await(t.Context(), &Object{}); !apierrors.IsForbidden(err) {
			t.Error(err)
		}
	})
}

func TestTheRoleOfReplicasIsWhatTheConfigMapAsks(t *testing.T) {
	inCluster(t, func(t *testing.T, s *fakekube.Server, c *ConfigMap) {
		rights := fakekube.ReadRights(t, "../deploy/kubernetes/rbac-replicas.yaml", "relay-replicas")
		s.Set(func() { s.Fault = rights.Refuse })
		o, err := c.Read(t.Context())
		for range 2 {
			err = errors.Join(err, c.Write(t.Context(), o))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := errors.Join(err, c.Await(ctx, o)); err != nil {
			t.Error(err)
		}
		if lacks, unused := rights.Lacks(), rights.Unused(""); len(lacks)+len(unused) > 0 {
			t.Errorf("the role lacks %q, and grants what is not asked: %q", lacks, unused)
		}
	})
}
