#!/usr/bin/env bash
# Breaks the demo in two minutes, and repairs it: an upstream is killed, another comes back empty, the
# hold is looked at and released, and that mistake is rolled back. Every step checks what it shows.
#
#   DEMO_PAUSE=0    do not wait for readers between the steps (for CI)
#
# demo-lib.sh has more variables.
source "$(dirname "${BASH_SOURCE[0]}")/demo-lib.sh"

pause=${DEMO_PAUSE:-6}

end() {
  kill "${pid[$1]}"
  wait "${pid[$1]}" 2>/dev/null || true
  unset "pid[$1]"
}

# tell TEXT: a step of the story.
tell() {
  sleep "$pause"
  echo
  echo "── $1"
}

# served UPSTREAM: how many resources of an upstream are served.
served() { "$relay" upstreams "$1" -o 'jsonpath={range .resources.*}{@}{"\n"}{end}' | awk '{n += $1} END {print n + 0}'; }

# until_true TEXT COMMAND...: waits until the command succeeds.
until_true() {
  local what=$1 deadline=$((SECONDS + patience))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || fail "waited in vain: $what"
    sleep 0.2
  done
}

is_held() { [[ -n $("$relay" upstreams east --held -o 'jsonpath={[0].id}') ]]; }
is_lost() { [[ $("$relay" upstreams west -o 'jsonpath={.state}') == disconnected ]]; }

start east
start west
start relay
"$relay" wait --for healthy --timeout "${patience}s"
east=$(served east)

echo
echo "Two clusters, east and west, and a relay that federates them. Watch it:"
echo
printf '    %-46s %s\n' "http://127.0.0.1:${ports[5]}/ui/" "in a browser" "$relay status --watch --admin $RELAY_ADMIN" "in another terminal"
show status
show get se -A

tell "1. An upstream is killed. Its resources are still served."
end west
until_true "west is lost" is_lost
show status
show get se payments -n payments
start west
"$relay" wait --for synced=west --timeout "${patience}s"

tell "2. Another comes back empty: an accident. The guard holds its deletions, and clients lose nothing."
end east
mv "$work/east" "$work/east.saved"
mkdir "$work/east"
start east
until_true "the deletions are held" is_held
[[ $(served east) == "$east" ]] || fail "resources of east were deleted although they are held"
show status

tell "3. Look before you decide: what would be deleted?"
show upstreams east --held --limit 5
hold=$("$relay" upstreams east --held -o 'jsonpath={[0].id}')
[[ -n $hold ]] || fail "the hold has no ID"

tell "4. Somebody takes it for meant, and releases exactly these. That is a mistake."
show release east --hold "$hold" --reason "east is being retired"
[[ $(served east) == 0 ]] || fail "east has $(served east) resources after the release"

tell "5. The mistake is rolled back: the history knows what was there."
show history east
good=$("$relay" history east -o 'jsonpath={range [*]}{.id} {.resources}{"\n"}{end}' | awk -v n="$east" '$2 == n {print $1; exit}')
[[ -n $good ]] || fail "no revision of east has $east resources"
show rollback east --to "$good" --reason "it was an accident"
[[ $(served east) == "$east" ]] || fail "east has $(served east) resources after the rollback, not $east"

tell "6. East is repaired, and followed again."
end east
rm -r "$work/east"
mv "$work/east.saved" "$work/east"
start east
"$relay" wait --for synced=east --timeout "${patience}s"
until_true "east can be followed" "$relay" unfreeze east
"$relay" wait --for healthy --timeout "${patience}s"
[[ $(served east) == "$east" ]] || fail "east has $(served east) resources at the end, not $east"
show status

tell "7. What happened, when, and who did it: the journal has it all."
show events --type lost,regained,held,released,rolled-back,unfrozen
show events --orders
echo
echo "That is the story. To look at the demo on your own: make demo"
failed=0
