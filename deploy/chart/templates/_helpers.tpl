{{/* The text of the config file. */}}
{{- define "meshrelay.config" -}}
{{- if .Values.configFile }}{{ .Values.configFile }}{{ else }}{{ toYaml .Values.config }}{{ end }}
{{- end }}

{{/* The config as a map. */}}
{{- define "meshrelay.parsed" -}}
{{- $config := include "meshrelay.config" . | fromYaml }}
{{- with $config.Error }}{{ fail (printf "configFile is not YAML: %s" .) }}{{ end }}
{{- toYaml $config }}
{{- end }}

{{/* The port of an address that others reach, and nothing for one on loopback. */}}
{{- define "meshrelay.port" -}}
{{- if not (regexMatch `^(127\.|localhost:|\[::1\])` .) }}{{ regexFind "[0-9]+$" . }}{{ end }}
{{- end }}

{{/* The ports of the listeners that clients reach, as a list of name and port. */}}
{{- define "meshrelay.listeners" -}}
{{- $config := include "meshrelay.parsed" . | fromYaml }}
{{- $ports := list }}
{{- range ($config.downstream | default dict).listeners }}
  {{- with include "meshrelay.port" (.address | default "") }}
    {{- $name := ternary (printf "grpc-xds-%s" .) "grpc-xds" (gt (len $ports) 0) }}
    {{- $ports = append $ports (dict "name" $name "port" (atoi .)) }}
  {{- end }}
{{- end }}
{{- if not $ports }}{{ fail "config.downstream.listeners: no address that clients of other pods reach: add 0.0.0.0:15010" }}{{ end }}
{{- toYaml (dict "ports" $ports) }}
{{- end }}

{{- define "meshrelay.admin" -}}
{{- $config := include "meshrelay.parsed" . | fromYaml }}
{{- $port := include "meshrelay.port" (($config.admin | default dict).address | default "127.0.0.1:15014") }}
{{- $port | required "config.admin.address: the kubelet does not reach it: set 0.0.0.0:15014" }}
{{- end }}

{{- define "meshrelay.serviceAccount" -}}
{{- .Values.serviceAccount.name | default .Values.service.name }}
{{- end }}

{{- define "meshrelay.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* Labels and annotations of an object, with those of a dict: top, labels, annotations. */}}
{{- define "meshrelay.metadata" -}}
{{- $values := .top.Values -}}
labels:
  {{- toYaml (merge (dict "app" $values.service.name "app.kubernetes.io/name" $values.name) (.labels | default dict) $values.labels) | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) $values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Rules for all kinds, with a list of verbs. */}}
{{- define "meshrelay.kindRules" -}}
- apiGroups: [networking.istio.io]
  resources: [destinationrules, envoyfilters, gateways, proxyconfigs, serviceentries, sidecars, virtualservices, workloadentries, workloadgroups]
  verbs: [{{ join ", " . }}]
- apiGroups: [security.istio.io]
  resources: [authorizationpolicies, peerauthentications, requestauthentications]
  verbs: [{{ join ", " . }}]
- apiGroups: [telemetry.istio.io]
  resources: [telemetries]
  verbs: [{{ join ", " . }}]
- apiGroups: [extensions.istio.io]
  resources: [trafficextensions, wasmplugins]
  verbs: [{{ join ", " . }}]
- apiGroups: [gateway.networking.k8s.io]
  resources: [backendtlspolicies, gatewayclasses, gateways, grpcroutes, httproutes, listenersets, referencegrants, tcproutes, tlsroutes, udproutes]
  verbs: [{{ join ", " . }}]
- apiGroups: [gateway.networking.x-k8s.io]
  resources: [xbackends, xbackendtrafficpolicies, xlistenersets, xmeshes]
  verbs: [{{ join ", " . }}]
{{- end }}

{{- define "meshrelay.statusRules" -}}
- apiGroups: [networking.istio.io]
  resources: [destinationrules/status, envoyfilters/status, gateways/status, proxyconfigs/status, serviceentries/status, sidecars/status, virtualservices/status, workloadentries/status, workloadgroups/status]
  verbs: [patch]
- apiGroups: [security.istio.io]
  resources: [authorizationpolicies/status, peerauthentications/status, requestauthentications/status]
  verbs: [patch]
- apiGroups: [telemetry.istio.io]
  resources: [telemetries/status]
  verbs: [patch]
- apiGroups: [extensions.istio.io]
  resources: [trafficextensions/status, wasmplugins/status]
  verbs: [patch]
- apiGroups: [gateway.networking.k8s.io]
  resources: [backendtlspolicies/status, gatewayclasses/status, gateways/status, grpcroutes/status, httproutes/status, listenersets/status, referencegrants/status, tcproutes/status, tlsroutes/status, udproutes/status]
  verbs: [patch]
- apiGroups: [gateway.networking.x-k8s.io]
  resources: [xbackends/status, xbackendtrafficpolicies/status, xlistenersets/status, xmeshes/status]
  verbs: [patch]
{{- end }}

{{/* What a relay reads of an API server that is an upstream. */}}
{{- define "meshrelay.readRules" -}}
{{ include "meshrelay.kindRules" (ternary (list "get" "list" "watch") (list "list" "watch") .Values.rbac.status) }}
# So that new definitions are noticed at once. Without it the relay asks every 30 seconds.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [list, watch]
# With discoverySelectors also list and watch on namespaces; with ingress also list and watch on
# services, and on ingresses and ingressclasses of networking.k8s.io, and with its mode mesh get on the
# ConfigMap istio in istio-system; with services.mode list and watch on services, and with its mode
# discover on endpointslices of discovery.k8s.io, pods, nodes and namespaces, and get on the
# namespace istio-system and that ConfigMap; with services.only list and watch on serviceexports of
# multicluster.x-k8s.io.
#
# The UID of kube-system is the name of the cluster, however its API server is reached.
- apiGroups: [""]
  resources: [namespaces]
  resourceNames: [kube-system]
  verbs: [get]
{{- if .Values.rbac.services }}
# For services.mode: discover.
- apiGroups: [""]
  resources: [services, pods, nodes, namespaces]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
# With services.only: exported.
- apiGroups: [multicluster.x-k8s.io]
  resources: [serviceexports]
  verbs: [list, watch]
# The network of its pods, and which services are only for this cluster.
- apiGroups: [""]
  resources: [namespaces]
  resourceNames: [istio-system]
  verbs: [get]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [istio]
  verbs: [get]
{{- end }}
{{- if .Values.rbac.status }}
# For kubernetes.status, which also gets the objects.
{{ include "meshrelay.statusRules" . }}
{{- end }}
{{- with .Values.rbac.extraRules }}
{{ toYaml . }}
{{- end }}
{{- end }}
