#!/usr/bin/env bash
# Federates an east and a west cluster, which demo-lib.sh describes with more variables. Runs until
# interrupted; east and west may be killed meanwhile.
#
#   DEMO_ONCE=1   end after the first look
source "$(dirname "${BASH_SOURCE[0]}")/demo-lib.sh"

echo "demo: starting east (xDS 127.0.0.1:${ports[0]}), west (127.0.0.1:${ports[2]}) and the federating relay (127.0.0.1:${ports[4]})"
start east
start west
start relay
"$relay" wait --for healthy --timeout "${patience}s"

# try COMMAND TEXT: a line of what to try next.
try() { printf '  %-50s %s\n' "$1" "$2"; }

show status
show get se,vs -A
show explain se payments/bank
echo
echo "The config of both clusters is on xds://$RELAY_SERVER. In another terminal, try:"
echo
if [[ -n ${DEMO_PORTS:-} ]]; then try "export RELAY_ADMIN=$RELAY_ADMIN RELAY_SERVER=$RELAY_SERVER" 'first: the ports are others'; fi
try "$relay get all -A" 'every kind that there is'
try "$relay get vs -A --watch" "changes as they come; now edit or delete a file in ${config[east]%.yaml}, a copy of the samples"
try "$relay get se bank -n payments -o yaml" 'one resource as YAML'
try "$relay get se -A --server 127.0.0.1:${ports[2]}" 'what west alone has'
try "$relay conflicts" 'resources that both clusters have'
try "$relay upstreams west" 'one upstream, with its kinds'
try "$relay history west" 'its revisions, to look at and to roll back to'
try "$relay status --watch" "now end west: kill ${pid[west]}"
try "http://$RELAY_ADMIN/ui/" 'the same in a browser'
try "curl -s $RELAY_ADMIN/metrics" 'metrics'
try "curl -s $RELAY_ADMIN/" 'everything else that the relay shows'
cat <<EOF

To make an istiod read from it, put this into its mesh config:

  configSources:
  - address: xds://$RELAY_SERVER
  - address: k8s://                            # without it, the istiod no longer reads its own cluster

EOF
if [[ -n ${DEMO_ONCE:-} ]]; then
  failed=0
  exit 0
fi
echo "Running until interrupted (Ctrl-C). Logs: $work"
# The end of a cluster is what the demo is about. The end of the federating relay is news.
while lives relay; do
  wait -n "${pid[@]}" || true
  for name in east west; do
    if [[ -z ${pid[$name]:-} ]] || lives "$name"; then continue; fi
    unset "pid[$name]"
    cat <<EOF

demo: $name has ended. The federating relay keeps its config: see $relay status
demo: in another terminal, start it again: $relay serve -c ${config[$name]}
EOF
  done
done
tail -n 3 "$work/relay.log" >&2
fail "the federating relay has ended"
