package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// marked matches the version of a resource that has passed one relay, in the form for istiods.
var marked = regexp.MustCompile(`^[\w-]{12}\.[\w-]{8}$`)

// TestWhatIstiodsReturnIsKnownAgain_S10: two istiods are upstreams and clients of one relay, on one
// listener, and tell it again what they have from it. What goes at its origin goes everywhere.
func TestWhatIstiodsReturnIsKnownAgain_S10(t *testing.T) {
	t.Parallel()
	meshes := map[string]*istiod{"east": newIstiod(t, "east"), "west": newIstiod(t, "west")}
	r := relayOf(t, "hub", fmt.Sprintf(`upstreams:
- {name: east, xds: {addresses: [%q], plaintext: true, resyncInterval: 1s}}
- {name: west, xds: {addresses: [%q], plaintext: true, resyncInterval: 1s}}
downstream: {startupTimeout: 1s, listeners: [{address: XDS, plaintext: true}]}
`, meshes["east"].grpc, meshes["west"].grpc)).start()
	for name, i := range meshes {
		i.write(t, "of-"+name, name+".example")
		i.args = i.args[:len(i.args)-2] // without --configDir: it is a source beside the relay
		writeFile(t, i.mesh, fmt.Sprintf("trustDomain: %s.example\nconfigSources:\n- address: xds://%s\n- address: fs://%s\n", name, r.xds, i.configDir))
	}
	eventually(t, "the relay serves", func() error {
		_, err := dial(t, r.xds).list(seV1)
		return err
	})
	for _, i := range meshes {
		i.start()
	}
	for _, i := range meshes {
		i.ready()
	}
	r.awaitReadiness(http.StatusOK, "ready\n")

	back := func(version string) error {
		sent, err := dial(t, meshes["west"].grpc).list(seV1alpha3)
		switch {
		case err != nil:
			return err
		case sent["shop/of-east"] == nil:
			return fmt.Errorf("west has %v", sent)
		case !strings.Contains(sent["shop/of-east"].Body.String(), version):
			return fmt.Errorf("it is %v", sent["shop/of-east"])
		}
		if m := sent["shop/of-east"].Metadata; m.Annotations["meshrelay.io/from"] != "" || !marked.MatchString(m.Version) {
			return fmt.Errorf("it has the version %q and the annotations %v", m.Version, m.Annotations)
		}
		return nil
	}
	// West's answer is what the relay reads, also after an update, which istiods store in
	// another way.
	eventually(t, "west returns what east has", func() error { return back("east.example") })
	meshes["east"].write(t, "of-east", "second.example")
	eventually(t, "west returns the update", func() error { return back("second.example") })
	eventually(t, "the relay leaves it out", func() error {
		out, code := r.command("explain", "--left-out")
		if code != 0 || !strings.Contains(out, "west") || !strings.Contains(out, "of-east") || strings.Count(out, "loop") < 2 {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})

	meshes["east"].remove(t, "of-east")
	const gone, other = "networking.istio.io/ServiceEntry shop/of-east", "networking.istio.io/ServiceEntry shop/of-west"
	eventually(t, "it is gone everywhere", func() error {
		for name, c := range map[string]configs{"hub": r.configs(), "east": meshes["east"].configs(), "west": meshes["west"].configs()} {
			if c[gone] != "" || c[other] == "" {
				return fmt.Errorf("%s has %v", name, c)
			}
		}
		return nil
	})
}
