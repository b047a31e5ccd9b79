#!/usr/bin/env bash
# Writes the files of a fleet: clusters that read each other's config from one relay with two replicas.
#
#   make.sh DIR NAME=CIDR...      NAME=CIDR: a cluster, and the addresses from which its istiod comes
#
# Environment: FLEET_HOST, the DNS name by which istiods reach the relay (relay.fleet.example);
# IMAGE, that of the relay. Run it again with more clusters at the end: keys and certificates stay, and so do the ports
# of the clusters before. To renew the certificates, delete DIR/secrets/tls and DIR/secrets/operator before.
set -Eeuo pipefail
trap 'echo "failed: $BASH_COMMAND" >&2' ERR
usage() { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[[ $# -ge 2 ]] || usage
dir=$1; shift
names=()
for arg; do
  [[ $arg =~ ^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?=[0-9a-f.:]+/[0-9]+$ ]] || { echo "$arg is not NAME=CIDR" >&2; usage; }
  [[ ${arg%%=*} != tls ]] || { echo "tls is the name of other files" >&2; exit 2; }
  names+=("${arg%%=*}")
done
[[ $# -le 64 ]] || { echo "at most 64 clusters: istiods allocate addresses of 240.240.0.0/16" >&2; exit 2; }
[[ -z $(printf '%s\n' "${names[@]}" | sort | uniq -d) ]] || { echo "a cluster comes twice" >&2; exit 2; }
host=${FLEET_HOST:-relay.fleet.example}
image=${IMAGE:-registry.example/relay:v0.2.0}
first=15101 # the port of the first cluster; the next one has the next
umask 077
mkdir -p "$dir"/{hub,istiod,secrets/{ca,tls,operator}}
cd "$dir"
echo /secrets/ >.gitignore

# A CA for the relay alone, so that having a certificate says something. issue NAME SANS: unless it is there.
if [[ ! -f secrets/ca/tls.key ]]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=relays of the fleet" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign \
    -keyout secrets/ca/tls.key -out secrets/ca/tls.crt 2>/dev/null
fi
issue() {
  if [[ ! -f secrets/$1/tls.crt ]]; then
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout "secrets/$1/tls.key" 2>/dev/null |
      openssl x509 -req -CA secrets/ca/tls.crt -CAkey secrets/ca/tls.key -days 365 -out "secrets/$1/tls.crt" 2>/dev/null -extfile <(
        echo "subjectAltName=$2"
        echo "keyUsage=critical,digitalSignature"
        echo "extendedKeyUsage=$3"
      )
  fi
  cp secrets/ca/tls.crt "secrets/$1/ca.crt"
}
issue tls "DNS:$host,DNS:relay.istio-system.svc" serverAuth
issue operator "URI:spiffe://fleet.example/operator" clientAuth

# The values of the chart, with the config of the relay.
{
  cat <<EOF
# Values of the chart, for both replicas of the relay. Made by make.sh.
image: {repository: ${image%:*}, tag: ${image##*:}}
replicas: 2
service: {type: LoadBalancer}    # its address is that of $host
networkPolicy: {enabled: false}  # networkpolicy.yaml tells the clusters apart
token: {enabled: false}          # for istiods as upstreams
rootCert: {enabled: false}
files:                           # Secrets of hub.sh and connect.sh
- {name: tls, secret: relay-tls}
EOF
  for name in "${names[@]}"; do echo "- {name: $name, secret: relay-cluster-$name}"; done
  cat <<EOF
config:
  provenance: {relay: fleet}
  # What people order (freeze, rollback, release) is in force on both replicas.
  replicas: {cluster: {inCluster: true}, namespace: istio-system}
  # Of a name that several clusters have, the first cluster's is served.
  upstreams:
EOF
  for name in "${names[@]}"; do
    cat <<EOF
  - name: $name
    kubernetes: {cluster: {kubeconfig: /etc/relay-files/$name/$name}}
    import:
      profile: services           # what others need to reach its services; routing and all let in more
      namespaces: {exclude: [istio-system, "kube-*"]}
    guard: {percent: 10, count: 5} # more deletions at once wait until somebody decides
EOF
  done
  cat <<EOF
  # A host belongs to one cluster: no entry of one with rules of another.
  hostConflicts: first
  views:
  # A cluster is not sent what came from it.
EOF
  for name in "${names[@]}"; do echo "  - {name: to-$name, clusterID: $name}"; done
  cat <<EOF
  - name: operators
    match: {identities: ["spiffe://fleet.example/operator"]}
  - {name: pod}                   # by its listener alone
  downstream:
    listeners:
    # An istiod shows no certificate: the port says which cluster it is, and networkpolicy.yaml who reaches it.
EOF
  port=$first
  for name in "${names[@]}"; do
    cat <<EOF
    - address: 0.0.0.0:$port
      view: to-$name
      tls: {certFile: /etc/relay-files/tls/tls.crt, keyFile: /etc/relay-files/tls/tls.key}
      allowAnonymous: true
EOF
    port=$((port + 1))
  done
  cat <<EOF
    # People and tools show a certificate, and see everything.
    - address: 0.0.0.0:15012
      tls:
        certFile: /etc/relay-files/tls/tls.crt
        keyFile: /etc/relay-files/tls/tls.key
        clientCAs: [{trustDomain: fleet.example, file: /etc/relay-files/tls/ca.crt}]
    # For "relay get" within the pod.
    - {address: "127.0.0.1:15010", plaintext: true, view: pod}
EOF
} >hub/values.yaml

{
  cat <<EOF
# Who reaches which port of the relay. It holds only where the network plugin enforces policies.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: relay-fleet, namespace: istio-system}
spec:
  podSelector: {matchLabels: {app: relay}}
  policyTypes: [Ingress]
  ingress:
EOF
  port=$first
  for arg; do
    echo "  - {from: [{ipBlock: {cidr: \"${arg#*=}\"}}], ports: [{port: $port}]} # istiod of ${arg%%=*}"
    port=$((port + 1))
  done
  cat <<EOF
  - {ports: [{port: 15012}]} # asks for a certificate
  - {ports: [{port: 15014}]} # probes and metrics
EOF
} >hub/networkpolicy.yaml

# What each cluster gets: the root of the relay's certificate, and the values of its istiod. connect.sh adds the rights.
for n in "${!names[@]}"; do
  name=${names[n]} port=$((first + n))
  mkdir -p "clusters/$name"
  {
    printf 'apiVersion: v1\nkind: Secret\nmetadata: {name: relay-ca, namespace: istio-system}\nstringData:\n  ca.crt: |\n'
    sed 's/^/    /' secrets/ca/tls.crt # public
  } >"clusters/$name/relay-ca.yaml"
  cat >"istiod/$name.yaml" <<EOF
# Values of the chart istiod, for $name. From Istio 1.26 on; before, istiods speak plaintext only.
meshConfig:
  configSources:
  - address: k8s://              # its own; without it, these are not read any more
  - address: xds://$host:$port
    tlsSettings: {mode: SIMPLE, credentialName: relay-ca, sni: $host}
# Of the addresses that istiods allocate for hosts, each cluster has a range of its own: 1,022 hosts.
env:
  PILOT_IP_AUTOALLOCATE_IPV4_PREFIX: 240.240.$((4 * n)).0/22
  PILOT_IP_AUTOALLOCATE_IPV6_PREFIX: 2001:2:0:$(printf %x "$n")::/64
EOF
done
echo "$dir is made for ${#names[@]} clusters: ${names[*]}"
