package downstream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

// TestViewsKeepUpWhileClientsComeAndGo: sources change, clients of several views come, read
// and leave, all at once; those who stay arrive at what their view should be.
func TestViewsKeepUpWhileClientsComeAndGo(t *testing.T) {
	r := startRelay(t, true)
	const names, changes = 300, 1500
	r.put(many(names, "s-%03d", func(int) string { return "first" })...)
	metadata := [][]string{nil, {"CLUSTER_ID", "east"}, {"CLUSTER_ID", "west"}, {"CLUSTER_ID", "east", "ISTIO_REVISION", "blue"}}
	var staying []*deltaStream
	var comeAndGo []*deltaStream
	for range 2 {
		for _, md := range metadata {
			staying = append(staying, r.deltaAs(seV1, md...))
			comeAndGo = append(comeAndGo, r.deltaAs(seV1, md...))
		}
	}
	var wg sync.WaitGroup
	for i, store := range []*mirror.Store{r.store, r.west} {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(i)))
			for n := range changes {
				res := se("shop", fmt.Sprintf("s-%03d", rnd.IntN(names)), fmt.Sprint(n))
				switch rnd.IntN(4) {
				case 0:
					store.Remove(res.Key())
				case 1:
					store.Put(res)
				default:
					source := []string{"east", "west"}[i]
					store.Put(copyOf(res, source, source))
				}
			}
		})
	}
	for i, d := range comeAndGo {
		d.next()
		d.cancel()
		r.deltaAs(seV1, metadata[(i+1)%len(metadata)]...).next()
	}
	wg.Wait()
	for i, d := range staying {
		own := map[string]string{}
		for j := 0; j+1 < len(metadata[i%len(metadata)]); j += 2 {
			own[metadata[i%len(metadata)][j]] = metadata[i%len(metadata)][j+1]
		}
		x := views.Selection{Cluster: own["CLUSTER_ID"], Revision: own["ISTIO_REVISION"]}
		want := map[string]string{}
		for _, store := range []*mirror.Store{r.west, r.store} { // the first wins
			for _, res := range store.List(kindSE, "") {
				if x.Accepts(res) {
					want[res.FullName()] = res.Version()
				}
			}
		}
		holds := map[string]string{}
		for !maps.Equal(holds, want) {
			resp := d.next()
			for _, res := range resp.Resources {
				holds[res.Name] = res.Version
			}
			for _, name := range resp.RemovedResources {
				delete(holds, name)
			}
		}
	}
}
