package downstream

import (
	"maps"
	"slices"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	mcp "istio.io/api/mcp/v1alpha1"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
)

// follower is a client of everything of one type, without a transport.
type follower struct {
	delta bool
	subs  *subscription.Set
	holds map[string]string // versions by name
}

func newFollower(delta bool) *follower {
	f := &follower{delta: delta, holds: map[string]string{}}
	f.connect()
	return f
}

// connect subscribes. A delta client resumes with what it holds.
func (f *follower) connect() {
	f.subs = subscription.New(f.delta, nil, lookup)
	limits := subscription.Limits{Types: 1}
	req := &subscription.Request{TypeURL: seV1}
	if f.delta {
		req.Versions = maps.Clone(f.holds)
	}
	_, err := f.subs.Request(req, limits, time.Now())
	if err != nil {
		panic(err)
	}
}

// look brings the client to a snapshot. It returns what it was sent; an error when it is too
// far behind.
func (f *follower) look(s *snapshot.Snapshot) (sent bool, changed map[string]string, removed []string, err error) {
	round, err := f.subs.Plan(func(subscription.Type) *snapshot.Snapshot { return s }, func(int) {})
	if round == nil || err != nil {
		return false, nil, nil, err
	}
	changed = map[string]string{}
	for {
		resp, ok := f.subs.Next(round, time.Now())
		if !ok {
			return sent, changed, removed, nil
		}
		sent = true
		if resp.Size != resp.Buffers.Len() {
			panic("size is wrong")
		}
		if !f.delta {
			f.holds = versionsOf(resp)
			continue
		}
		m := &discoveryv3.DeltaDiscoveryResponse{}
		if err := proto.Unmarshal(resp.Buffers.Materialize(), m); err != nil {
			panic(err)
		}
		for _, r := range m.Resources {
			changed[r.Name] = r.Version
		}
		removed = append(removed, m.RemovedResources...)
		maps.Copy(f.holds, changed)
		maps.DeleteFunc(f.holds, func(name, _ string) bool { return slices.Contains(m.RemovedResources, name) })
	}
}

// versionsOf returns what is in a SotW response, by the versions that stand in the metadata.
func versionsOf(resp subscription.Response) map[string]string {
	m := &discoveryv3.DiscoveryResponse{}
	if err := proto.Unmarshal(resp.Buffers.Materialize(), m); err != nil {
		panic(err)
	}
	holds := map[string]string{}
	for _, a := range m.Resources {
		r := &mcp.Resource{}
		if err := a.UnmarshalTo(r); err != nil {
			panic(err)
		}
		holds[r.Metadata.Name] = r.Metadata.Version
	}
	return holds
}

// applyDifference brings what a client holds from one snapshot to another.
func applyDifference(holds map[string]string, d *snapshot.Difference) {
	for _, b := range d.Changed {
		m := &discoveryv3.DeltaDiscoveryResponse{}
		if err := proto.Unmarshal(b.ReadOnlyData(), m); err != nil {
			panic(err)
		}
		holds[m.Resources[0].Name] = m.Resources[0].Version
	}
	for _, name := range d.Removed {
		delete(holds, name)
	}
}
