package config_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"meshrelay/config"
)

const sinkOnly = `clusters: [{name: fleet, secrets: {cluster: {inCluster: true}}}]
views: [{name: dr}]
sinks: [{%s}]
downstream: {listeners: [{address: "127.0.0.1:15010", plaintext: true}]}
`

func TestAViewMayBeForASinkAlone(t *testing.T) {
	c, err := parse("relay.yaml", fmt.Appendf(nil, sinkOnly, "name: dr, view: dr, cluster: {inCluster: true}"))
	if err != nil {
		t.Fatal(err)
	}
	want := config.Sink{
		Name: "dr", View: "dr", Cluster: config.Cluster{InCluster: true}, Namespace: "istio-system", Mode: "dryRun", Conflicts: "skip",
		Guard: config.SinkGuard{Percent: 10, Count: 5}, WritesPerSecond: 20,
	}
	if !reflect.DeepEqual(c.Sinks[0], want) {
		t.Errorf("%+v", c.Sinks[0])
	}
}

func TestMistakesInSinksAreNamed(t *testing.T) {
	for fields, want := range map[string]string{
		`name: Dr, view: dr, cluster: {inCluster: true}`:                              `sinks[0].name: "Dr" is not a name`,
		`name: ` + strings.Repeat("a", 41) + `, view: dr, cluster: {inCluster: true}`: `is not a name: write 1 to 40`,
		`name: dr, view: dr}, {name: dr, view: dr, cluster: {inCluster: true}`:        `sinks[1].name: "dr" is the name of sinks[0] already`,
		`name: dr, view: no, cluster: {inCluster: true}`:                              `sinks[0].view: there is no view "no"`,
		`name: dr, cluster: {inCluster: true}`:                                        `sinks[0].view: missing`,
		`name: dr, view: dr`:                                                          `sinks[0].cluster: neither kubeconfig nor inCluster`,
		`name: dr, view: dr, cluster: {inCluster: true, kubeconfig: a}`:               `sinks[0].cluster.inCluster: inCluster and kubeconfig are both set`,
		`name: dr, view: dr, cluster: {inCluster: true}, clusterUID: a/b`:             `sinks[0].clusterUID: "a/b" is not the UID of a cluster`,
		`name: dr, view: dr, cluster: {inCluster: true}, mode: write`:                 `sinks[0].mode: "write": want one of dryRun, apply`,
		`name: dr, view: dr, cluster: {inCluster: true}, conflicts: force`:            `sinks[0].conflicts`,
		`name: dr, view: dr, cluster: {inCluster: true}, namespace: A`:                `sinks[0].namespace: "A" is not a namespace`,
		`name: dr, view: dr, cluster: {inCluster: true}, writesPerSecond: 0`:          `sinks[0].writesPerSecond: 0 is out of range`,
		`name: dr, view: dr, cluster: {inCluster: true}, guard: {percent: 101}`:       `sinks[0].guard.percent`,
		`name: dr, view: dr, cluster: {inCluster: true}, pruned: true`:                `sinks[0].pruned: unknown field`,
	} {
		if _, err := parse("relay.yaml", fmt.Appendf(nil, sinkOnly, fields)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", fields, err, want)
		}
	}
}
