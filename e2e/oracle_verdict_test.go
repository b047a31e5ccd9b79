package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// verdict is what differs at the istiod that is fed in a way.
type verdict struct {
	way        string
	mismatches []mismatch
}

// ask compares what the proxies are sent until is returns nil of what differs: what an istiod has in hand when it is asked
// may still change what it sends.
func (o *oracle) ask(is func(different []verdict) error) (different []verdict, err error) {
	o.t.Helper()
	err = within(func() error {
		direct := o.everything(o.direct)
		o.look(direct)
		different = nil
		for _, f := range o.fed {
			fed := o.everything(f.istiod)
			v := verdict{way: f.way}
			for _, p := range o.proxies {
				v.mismatches = append(v.mismatches, compare(p.String(), direct[p.String()], fed[p.String()])...)
			}
			if len(v.mismatches) > 0 {
				different = append(different, v)
			}
		}
		return is(different)
	})
	return different, err
}

// everything returns what an istiod sends to each of the proxies.
func (o *oracle) everything(i *istiod) map[string]envoyConfig {
	o.t.Helper()
	client := dial(o.t, i.grpc)
	defer client.conn.Close()
	all, err := client.fetchAll(o.proxies)
	if err != nil {
		o.t.Fatalf("istiod %s: %v", i.name, err)
	}
	return all
}

// look counts the messages that the istiod that reads the files sends.
func (o *oracle) look(all map[string]envoyConfig) {
	for _, config := range all {
		for _, resources := range config {
			for _, r := range resources {
				eachMessage(r, func(m proto.Message) { o.seen[m.ProtoReflect().Descriptor().FullName()]++ })
			}
		}
	}
}

// saw checks that there was something to compare: each of the messages came.
func (o *oracle) saw(messages ...protoreflect.FullName) {
	o.t.Helper()
	for _, m := range messages {
		if o.seen[m] == 0 {
			o.t.Errorf("no proxy was sent a %s", m)
		}
	}
}

// fromRules are messages that an istiod makes of the rules of random sets, and not without.
var fromRules = []protoreflect.FullName{
	"envoy.config.route.v3.WeightedCluster",
	"envoy.config.route.v3.RouteAction.RequestMirrorPolicy",
	"envoy.config.route.v3.RedirectAction",
	"envoy.config.cluster.v3.OutlierDetection",
	"envoy.extensions.filters.http.fault.v3.HTTPFault",
	"envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
	"envoy.extensions.filters.http.rbac.v3.RBAC",
	"envoy.extensions.filters.network.rbac.v3.RBAC",
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster",
}

// fromExtensions are the others of the fixed set.
var fromExtensions = []protoreflect.FullName{
	"envoy.extensions.filters.http.ext_authz.v3.ExtAuthz",
	"envoy.extensions.filters.http.lua.v3.Lua",
	"envoy.extensions.filters.network.mongo_proxy.v3.MongoProxy",
	"envoy.extensions.access_loggers.file.v3.FileAccessLog",
	"envoy.config.trace.v3.ZipkinConfig",
}

// same gives a set and reports every difference, with the files to look into it.
func (o *oracle) same(name string, set []manifest) bool {
	o.t.Helper()
	if err := o.give(name, set); err != nil {
		o.t.Errorf("%s does not arrive: %v; the set is in %s", name, err, o.keep(name, verdict{}))
		return false
	}
	different, _ := o.ask(func(different []verdict) error {
		if len(different) > 0 {
			return errors.New(names(different))
		}
		return nil
	})
	whose := ""
	if len(different) > 0 {
		whose = o.control()
	}
	for _, v := range different {
		var b strings.Builder
		for _, m := range v.mismatches[:min(5, len(v.mismatches))] {
			fmt.Fprintf(&b, "%.3000s\n", m)
		}
		o.t.Errorf("%s, through %s: %d resources differ; the set and all of them are in %s; %s\n%s",
			name, v.way, len(v.mismatches), o.keep(name, v), whose, b.String())
	}
	return len(different) == 0
}

// control tells whether a new istiod that reads the set from files agrees with the istiod that
// runs on from set to set. If not, the difference is an istiod's own.
func (o *oracle) control() string {
	o.t.Helper()
	i := newIstiod(o.t, "control").inOracle()
	doc, err := document(o.set, o.marker)
	if err != nil {
		return err.Error()
	}
	writeFile(o.t, filepath.Join(i.configDir, "set.yaml"), doc)
	writeFile(o.t, filepath.Join(i.configDir, "marker.yaml"), markerFilter(o.cluster))
	i.start().ready()
	defer i.kill()
	if err := within(func() error { return i.holds(o.set, o.marker, nil) }); err != nil {
		return "an istiod that has just started does not read the set: " + err.Error()
	}
	direct, fresh := o.everything(o.direct), o.everything(i)
	v := verdict{way: "the same files"}
	for _, p := range o.proxies {
		v.mismatches = append(v.mismatches, compare(p.String(), direct[p.String()], fresh[p.String()])...)
	}
	if len(v.mismatches) == 0 {
		return "an istiod that has just read the same files agrees with the one that reads the files"
	}
	return "an istiod that has just read the same files does not agree with the one that reads the files either: " + names([]verdict{v})
}

// names returns what differs, in short.
func names(verdicts []verdict) string {
	var all []string
	for _, v := range verdicts {
		for _, m := range v.mismatches {
			all = append(all, fmt.Sprintf("%s: %s %s %s", v.way, m.proxy, m.kind(), m.name))
		}
	}
	return strings.Join(all, "; ")
}

// keep writes down the set, and what differs: as a report, and as two files to compare. It
// returns the directory.
func (o *oracle) keep(name string, v verdict) string {
	o.t.Helper()
	dir := mkdir(o.t, o.out, name)
	doc, err := document(o.set, o.marker)
	if err != nil {
		o.t.Fatal(err)
	}
	writeFile(o.t, filepath.Join(dir, "set.yaml"), doc)
	if len(v.mismatches) == 0 {
		return dir
	}
	var report, direct, fed strings.Builder
	text := prototext.MarshalOptions{Multiline: true}
	for _, m := range v.mismatches {
		fmt.Fprintln(&report, m)
		title := fmt.Sprintf("# %s: %s %s\n", m.proxy, m.kind(), m.name)
		direct.WriteString(title)
		fed.WriteString(title)
		if m.direct != nil {
			fmt.Fprintln(&direct, text.Format(canonical(m.direct)))
		}
		if m.fed != nil {
			fmt.Fprintln(&fed, text.Format(canonical(m.fed)))
		}
	}
	way := strings.ReplaceAll(v.way, " ", "-")
	writeFile(o.t, filepath.Join(dir, way+".diff"), report.String())
	writeFile(o.t, filepath.Join(dir, way+".direct.txt"), direct.String())
	writeFile(o.t, filepath.Join(dir, way+".fed.txt"), fed.String())
	return dir
}
