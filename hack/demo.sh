#!/usr/bin/env bash
# Two relays with file sources stand in for the istiods of an east and a west cluster; a
# third one federates them. Runs until interrupted.
#
#   DEMO_ONCE=1   end after the first look
#   RELAY=FILE    use this program instead of building one
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

logs=$(mktemp -d "${TMPDIR:-/tmp}/relay-demo.XXXXXX")
pids=()
failed=1 # until we know better

stop() {
  trap - EXIT INT TERM
  for pid in "${pids[@]}"; do
    kill "$pid" 2>/dev/null || true
  done
  for pid in "${pids[@]}"; do
    wait "$pid" 2>/dev/null || true
  done
  if ((failed)) && ((${#pids[@]})); then
    echo "demo: something went wrong; the logs are in $logs" >&2
  else
    rm -rf "$logs"
  fi
  exit "$failed"
}
trap stop EXIT
trap 'failed=0; echo; echo "demo: stopping"; exit' INT TERM

fail() {
  echo "demo: $1" >&2
  exit 1
}

in_use() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

for port in 15110 15114 15210 15214 15010 15014; do
  if in_use "$port"; then
    fail "port $port of 127.0.0.1 is taken, perhaps by another demo or by an istiod: stop what listens there (see: ss -ltnp 'sport = :$port') and try again"
  fi
done

relay=${RELAY:-}
if [[ -z $relay ]]; then
  relay=bin/relay
  echo "demo: building $relay"
  GOWORK=off go build -o "$relay" ./cmd/relay
fi

# start NAME: runs samples/NAME.yaml.
start() {
  "$relay" serve -c "samples/$1.yaml" 2>"$logs/$1.log" &
  pids+=($!)
}

# ready NAME PORT: waits until the relay whose admin port that is is ready and has all
# its upstreams. It starts in a moment: 30 seconds mean that it will not.
ready() {
  local deadline=$((SECONDS + 30)) answer=""
  while ((SECONDS < deadline)); do
    if ! kill -0 "${pids[-1]}" 2>/dev/null; then
      cat "$logs/$1.log" >&2
      fail "the relay of samples/$1.yaml has ended"
    fi
    answer=$("$relay" status --admin "127.0.0.1:$2" --timeout 5s 2>&1 || true)
    [[ ${answer%%$'\n'*} == ready ]] && return
    sleep 0.1
  done
  echo "$answer" >&2
  fail "the relay of samples/$1.yaml is not ready after 30 seconds"
}

echo "demo: starting east (xDS 127.0.0.1:15110), west (127.0.0.1:15210) and the federating relay (127.0.0.1:15010)"
start east
ready east 15114
start west
ready west 15214
start relay
ready relay 15014

# show ARGS: a command and what it prints.
show() {
  echo
  echo "\$ relay $*"
  "$relay" "$@"
}

# try COMMAND TEXT: a line of what to try next.
try() { printf '  %-50s %s\n' "$1" "$2"; }

show status
show get se,vs -A
show explain se payments/bank
cat <<EOF

The config of both clusters is on xds://127.0.0.1:15010. In another terminal, try:

$(
  try "$relay get all -A" 'every kind that there is'
  try "$relay get vs -A --watch" 'changes as they come; now edit a file in samples/east'
  try "$relay get se bank -n payments -o yaml" 'one resource as YAML'
  try "$relay get se -A --server 127.0.0.1:15210" 'what west alone has'
  try "$relay conflicts" 'resources that both clusters have'
  try "$relay upstreams west" 'one upstream, with its kinds'
  try "$relay status --watch" 'now end one of them: kill $(pgrep -f samples/west.yaml)'
  try "$relay top" 'the same on one screen, with what happens'
  try "http://127.0.0.1:15014/ui/" 'the same in a browser'
  try "curl -s 127.0.0.1:15014/metrics" 'metrics'
  try "curl -s 127.0.0.1:15014/" 'everything else that the relay shows'
)

To make an istiod read from it, put this into its mesh config:

  configSources:
  - address: xds://127.0.0.1:15010
  - address: k8s://                            # without it, the istiod no longer reads its own cluster

EOF
if [[ -n ${DEMO_ONCE:-} ]]; then
  failed=0
  exit 0
fi
echo "Running until interrupted (Ctrl-C). Logs: $logs"
# The relays run for ever: if one ends, that is news.
wait -n "${pids[@]}" || true
for name in east west relay; do
  tail -n 3 "$logs/$name.log" >&2
done
fail "a relay has ended"
