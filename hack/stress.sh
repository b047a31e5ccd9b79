#!/usr/bin/env bash
# Runs the tests again and again beside two busy loops, with one and two processors by turns: what fails
# here would fail on a slow machine. Tests with sockets, processes or timers run ten times, all others
# three times, those of "make e2e" twice.
#
# A package is a part. The result of each part is kept for the commit, so that a run which was ended goes
# on where it stopped, and a part that has failed is run again.
#
#   hack/stress.sh                     all parts
#   hack/stress.sh ./adsclient e2e     these parts
#   STRESS_ROUNDS=2                    how many times in a row each part has to be green (1)
#   STRESS_DIR=DIR                     where results are kept (the user's cache)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -n $(git status --porcelain) ]]; then
  echo "stress: commit first: results are kept by commit" >&2
  exit 1
fi
results=${STRESS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/meshrelay-stress}/$(git rev-parse HEAD)
mkdir -p "$results"
binaries=$(mktemp -d)

busy=()
end() {
  trap - EXIT INT TERM
  for pid in "${busy[@]}"; do kill "$pid" 2>/dev/null || true; done
  rm -rf "$binaries"
}
trap end EXIT
trap 'exit 130' INT TERM
for _ in 1 2; do
  while kill -0 $$ 2>/dev/null; do :; done &
  busy+=($!)
done

parts=("$@")
if ((${#parts[@]} == 0)); then
  mapfile -t parts < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep -v '/attacks$' | sed 's|^meshrelay|.|')
  parts+=(ui e2e)
fi

# times PACKAGE: how often its tests run.
times() {
  if grep -lqE '"(net|net/http|net/http/httptest|os/exec|testing/synctest|google.golang.org/grpc|meshrelay/internal/testing/.*|github.com/rogpeppe/go-internal/testscript)"' "$1"/*_test.go; then echo 10; else echo 3; fi
}

# stress PART: runs a part as often as it has to.
stress() {
  local part=$1 n i flags=()
  case $part in
  ui)
    for _ in 1 2; do make ui-test; done
    ;;
  e2e)
    for _ in 1 2; do make e2e; done
    ;;
  *)
    if grep -lq '"pgregory.net/rapid"' "$part"/*_test.go; then flags=(-rapid.seed=1); fi
    go test -vet=off -c -o "$binaries/test" "$part"
    n=$(times "$part")
    for ((i = 0; i < n; i++)); do
      (cd "$part" && "$binaries/test" -test.cpu $((1 + i % 2)) -test.timeout 60m "${flags[@]}")
    done
    ;;
  esac
}

failed=0
for ((round = 1; round <= ${STRESS_ROUNDS:-1}; round++)); do
  for part in "${parts[@]}"; do
    name=${part#./}
    kept=$results/${name//\//_}.$round
    if [[ -e $kept.green ]]; then continue; fi
    began=$SECONDS
    # A subshell of its own, since "set -e" does not hold within a condition.
    code=0
    (set -e; stress "$part") >"$kept.log" 2>&1 </dev/null &
    wait $! || code=$?
    if ((code)); then
      failed=1
      echo "stress: $part FAILED in round $round after $((SECONDS - began)) s: $kept.log"
    else
      mv "$kept.log" "$kept.green"
      echo "stress: $part is green in round $round ($((SECONDS - began)) s)"
    fi
  done
done
echo "stress: results of $(git rev-parse --short HEAD) are in $results"
exit "$failed"
