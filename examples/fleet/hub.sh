#!/usr/bin/env bash
# Gives the relay's cluster what neither the chart nor connect.sh makes: the certificate of the listeners, and the network
# policy. Run it again when they have changed: the relay reads them by itself.
#
#   hub.sh DIR HUB      HUB: the context of the relay's cluster, in your kubeconfig
set -euo pipefail
[[ $# -eq 2 && -d $1/hub ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
kubectl create secret generic relay-tls -n istio-system --from-file "$1/secrets/tls" --dry-run=client -o yaml |
  kubectl --context "$2" apply -f - -f "$1/hub/networkpolicy.yaml"
