# shellcheck shell=bash
# What the demos share; they source it. Two relays with file sources stand in for the istiods of an east
# and a west cluster; a third one federates them, with a state that goes with the demo.
#
#   DEMO_PORTS=...  use these six ports, with spaces between them, not those of the samples
#   RELAY=FILE      use this program instead of building one
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

demo=$(basename "$0" .sh)
work=$(mktemp -d "${TMPDIR:-/tmp}/relay-$demo.XXXXXX")
read -r -a ports <<<"${DEMO_PORTS:-15110 15114 15210 15214 15010 15014}"
declare -A admin=([east]=${ports[1]} [west]=${ports[3]} [relay]=${ports[5]})
declare -A config=([east]=$work/east.yaml [west]=$work/west.yaml [relay]=$work/relay.yaml)
declare -A pid=()
failed=1 # until we know better

stop() {
  trap - EXIT INT TERM
  for name in "${!pid[@]}"; do
    kill "${pid[$name]}" 2>/dev/null || true
    wait "${pid[$name]}" 2>/dev/null || true
  done
  if ((failed)) && compgen -G "$work/*.log" >/dev/null; then
    echo "$demo: something went wrong; the logs are in $work" >&2
  else
    rm -rf "$work"
  fi
  exit "$failed"
}
trap stop EXIT
trap 'failed=0; echo; echo "$demo: stopping"; exit' INT TERM

fail() {
  echo "$demo: $1" >&2
  exit 1
}

for port in "${ports[@]}"; do
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    fail "port $port of 127.0.0.1 is taken, perhaps by another demo or by an istiod: stop what listens there (see: ss -ltnp 'sport = :$port') and try again"
  fi
done

relay=${RELAY:-}
if [[ -z $relay ]]; then
  relay=bin/relay
  echo "$demo: building $relay"
  GOWORK=off go build -o "$relay" ./cmd/relay
fi
export RELAY_ADMIN=127.0.0.1:${ports[5]} RELAY_SERVER=127.0.0.1:${ports[4]}

# sample NAME: a config of the samples, with the ports of this demo.
sample() {
  sed -e "s/15110/${ports[0]}/; s/15114/${ports[1]}/; s/15210/${ports[2]}/; s/15214/${ports[3]}/; s/15010/${ports[4]}/; s/15014/${ports[5]}/" "samples/$1.yaml"
}

mkdir -m 0700 "$work/state"
{
  sample relay
  echo "state: {dir: state}"
} >"${config[relay]}"

# East and west run with copies of the samples, which may be broken.
cp -r samples/east samples/west "$work/"
for name in east west; do sample "$name" >"${config[$name]}"; done

# patience is how many seconds a demo waits for what takes a moment: then it will not come, however busy the machine is.
patience=120

# start NAME: runs a relay and waits until it is ready.
start() {
  local deadline=$((SECONDS + patience)) answer=""
  "$relay" serve -c "${config[$1]}" 2>>"$work/$1.log" &
  pid[$1]=$!
  while ((SECONDS < deadline)); do
    if ! lives "$1"; then
      cat "$work/$1.log" >&2
      fail "the relay of ${config[$1]} has ended"
    fi
    answer=$("$relay" status --admin "127.0.0.1:${admin[$1]}" --timeout "${patience}s" 2>&1 || true)
    [[ ${answer%%$'\n'*} == ready* ]] && return
    sleep 0.1
  done
  echo "$answer" >&2
  fail "the relay of ${config[$1]} is not ready after $patience seconds"
}

# lives NAME: whether a relay that was started has not ended.
lives() { kill -0 "${pid[$1]}" 2>/dev/null; }

# show ARGS: a command and what it prints.
show() {
  local arg line="\$ relay"
  for arg in "$@"; do
    if [[ $arg == *" "* ]]; then arg="\"$arg\""; fi
    line+=" $arg"
  done
  echo
  echo "$line"
  "$relay" "$@"
}
