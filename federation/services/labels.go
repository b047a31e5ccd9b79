package services

import (
	"maps"
	"slices"
	"strings"

	"meshrelay/federation"
)

// EncodeLabels returns labels as text: a line k=v for each, sorted. It leaves out labels that Kubernetes would
// refuse.
func EncodeLabels(labels map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if v := labels[k]; isLabelKey(k) && (v == "" || isLabelValue(v)) {
			writeLabel(&b, k, v)
		}
	}
	return b.String()
}

func writeLabel(b *strings.Builder, k, v string) {
	b.WriteString(k)
	b.WriteByte('=')
	b.WriteString(v)
	b.WriteByte('\n')
}

// decodeLabels returns what EncodeLabels was given.
func decodeLabels(text string) map[string]string {
	labels := make(map[string]string, strings.Count(text, "\n")+1)
	for line := range strings.Lines(text) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		labels[k] = v
	}
	return labels
}

// isLabelKey reports whether s is the key of a Kubernetes label: a name, or a domain name, a slash and a name.
func isLabelKey(s string) bool {
	domain, name, has := strings.Cut(s, "/")
	if !has {
		return isLabelValue(s)
	}
	return isLabelValue(name) && len(domain) <= 253 && isQualified(domain, "-.")
}

// workloadLabels are the labels for the workload in an endpoint's metadata,
// "name;namespace;canonical name;canonical revision;cluster". They are sorted.
var workloadLabels = [...]string{"", "", federation.CanonicalNameLabel, federation.CanonicalRevisionLabel, federation.ClusterLabel}

// labelsOf returns the labels for the workload in an endpoint's metadata, as EncodeLabels does.
func labelsOf(workload string) string {
	if strings.Count(workload, ";") != len(workloadLabels)-1 {
		return ""
	}
	var b strings.Builder
	b.Grow(3*len(federation.CanonicalRevisionLabel) + len(workload))
	for _, name := range workloadLabels {
		var field string
		if field, workload, _ = strings.Cut(workload, ";"); name != "" && isLabelValue(field) {
			writeLabel(&b, name, field)
		}
	}
	return b.String()
}
