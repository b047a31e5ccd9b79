#!/usr/bin/env bash
# Lets the relay read a cluster: gives the cluster an account with the rights and a token, and the hub a Secret with a
# kubeconfig. "relay init --cluster" prints both, and this applies them.
#
#   connect.sh DIR NAME CONTEXT HUB      CONTEXT, HUB: of the cluster, and of the relay's, in your kubeconfig
#
# Environment: SERVER, the URL of the API server for the relay, if it is not that of CONTEXT; RELAY (bin/relay).
set -euo pipefail
[[ $# -eq 4 && -d $1/clusters/$2 ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
dir=$1 name=$2 context=$3 hub=$4
init=("${RELAY:-bin/relay}" init --cluster "$context" --name "$name")
"${init[@]}" >"$dir/clusters/$name/reader.yaml"
kubectl --context "$context" apply -f "$dir/clusters/$name"
# The cluster writes the token into a Secret in a moment.
for ((tries = 1; ; tries++)); do
  secret=$("${init[@]}" --secret ${SERVER:+--server "$SERVER"}) && break
  [[ $tries -lt 10 ]] || exit 1
  sleep 1
done
kubectl --context "$hub" apply -f - <<<"$secret"
