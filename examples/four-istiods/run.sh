#!/usr/bin/env bash
# Runs the four istiods and the relay until interrupted. The istiods read files and know no
# Kubernetes; d is a client of the relay, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=examples/four-istiods
logs=$(mktemp -d "${TMPDIR:-/tmp}/four-istiods.XXXXXX")
trap 'trap - EXIT; kill $(jobs -p) 2>/dev/null; wait; rm -rf "$logs"' EXIT
trap exit INT TERM

# istiod NAME PORT: its xDS port; those of HTTP and of its metrics are the next ones.
istiod() {
  POD_NAME=$1 ENABLE_CA_SERVER=false e2e/bin/pilot-discovery discovery --registries= \
    --clusterID "$1" --meshConfig "$logs/$1.yaml" --secureGRPCAddr= --httpsAddr= --ctrlz_port 0 \
    --grpcAddr "127.0.0.1:$2" --httpAddr "127.0.0.1:$(($2 + 1))" --monitoringAddr "127.0.0.1:$(($2 + 2))" \
    >"$logs/$1.log" 2>&1 &
}
# listens PORT: waits for it.
listens() { until (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; do sleep 0.2; done; }

for name in a b c d; do
  echo "configSources: [{address: \"fs://$PWD/$here/clusters/$name\"}]" >"$logs/$name.yaml"
done
echo "configSources: [{address: \"fs://$PWD/$here/clusters/d\"}, {address: \"xds://127.0.0.1:15011\"}]" >"$logs/d.yaml"

istiod a 15110
istiod b 15210
istiod c 15310
bin/relay serve -c $here/relay.yaml 2>"$logs/relay.log" &
# An istiod ends when its first connection to a config source fails.
listens 15011
istiod d 15410
listens 15410
echo "The merge is on 127.0.0.1:15010; without d's own on 15011. Logs: $logs. Ctrl-C ends it."
wait -n || { tail -n 5 "$logs"/*.log; exit 1; }
