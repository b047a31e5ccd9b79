package tracker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/federation/conflicts"
	"meshrelay/mirror"
)

func claim(t *testing.T, kind mirror.Kind, namespace string, body proto.Message) *mirror.Resource {
	t.Helper()
	packed, err := anypb.New(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: kind, Namespace: namespace, Name: "x"}, Source: "east", Body: packed})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestConfigsThatAreNotFollowedAreListed(t *testing.T) {
	tr := New(slog.New(slog.DiscardHandler))
	hosts := make([]string, 5000)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("h%d.example", i)
	}
	tr.hosts.Update(nil, claim(t, federation.VirtualService, "a", &networking.VirtualService{Hosts: hosts}))
	all := tr.NotFollowed()
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	var back []conflicts.NotFollowed
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(all, back); d != "" {
		t.Error(d)
	}
}

func TestPanicOverAConfigIsCountedAndNoMore(t *testing.T) {
	a, store := mirror.NewAggregate(), mirror.NewStore()
	var logged bytes.Buffer
	tr := New(slog.New(slog.NewTextHandler(&logged, nil)))
	if err := tr.Follow(a); err != nil {
		t.Fatal(err)
	}
	tr.hosts = conflicts.NewHosts(func() time.Time { // asked for when a host is in conflict
		panic("no time")
	})
	done := make(chan struct{}, 8)
	if err := a.RegisterHandler(func(c mirror.Change) {
		if c.Visible() {
			done <- struct{}{}
		}
	}); err != nil {
		t.Fatal(err)
	}
	a.SetSources([]mirror.Source{{Name: "east", Store: store}})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = a.Run(ctx) })
	for _, namespace := range []string{"a", "b", "c"} {
		store.Put(claim(t, federation.ServiceEntry, namespace, &networking.ServiceEntry{Hosts: []string{"db.example"}}))
		<-done
	}
	cancel()
	running.Wait()
	if n := tr.panics.Load(); n == 0 || !strings.Contains(logged.String(), "no time") || !strings.Contains(logged.String(), "hosts.go") {
		t.Errorf("%d panics, logged:\n%s", n, logged.String())
	}
	if n := len(a.List(federation.ServiceEntry, "")); n != 3 {
		t.Errorf("%d configs are served", n)
	}
}
