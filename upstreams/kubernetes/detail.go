package kubernetes

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/upstreams"
)

// Detail is what a status has of an API server, and of no other upstream.
type Detail struct {
	// Cluster is the UID of its namespace kube-system, empty while that is not known.
	Cluster string `json:"cluster,omitempty"`
	// Server is the version of the API server, empty while that is not known.
	Server string `json:"server,omitempty"`
	// Rotations counts changes of the credentials.
	Rotations uint64 `json:"rotations,omitempty"`
	// UnknownFields names the kinds of which an object had fields that this build does not know.
	UnknownFields []string `json:"unknownFields,omitempty"`
	// Namespaces counts those of the cluster, and Selected those that discoverySelectors pick.
	Namespaces int `json:"namespaces,omitempty"`
	Selected   int `json:"selected,omitempty"`
	// NamespaceProblems names namespaces whose newest metadata can not be used, at most twenty;
	// NamespaceProblemsTotal counts all.
	NamespaceProblems      []string `json:"namespaceProblems,omitempty"`
	NamespaceProblemsTotal int      `json:"namespaceProblemsTotal,omitempty"`
	// Ingress is set where Ingresses are converted.
	Ingress *IngressDetail `json:"ingress,omitempty"`
}

// IngressDetail is what becomes of the Ingresses of a cluster.
type IngressDetail struct {
	// Ingresses counts all whose content is known, Converted those that Gateways and VirtualServices are
	// made of. Refused counts those whose newest content can not be used: what is known of them stays.
	Ingresses int `json:"ingresses"`
	Converted int `json:"converted"`
	Refused   int `json:"refused,omitempty"`
	// Problems names parts that are left out or that no request reaches, at most twenty;
	// ProblemsTotal counts all.
	Problems      []string `json:"problems,omitempty"`
	ProblemsTotal int      `json:"problemsTotal,omitempty"`
}

// notes returns the lines about an API server that operators should read.
func (d *Detail) notes() (lines []string) {
	if d.Namespaces > 0 {
		lines = append(lines, fmt.Sprintf("%d of %s selected", d.Selected, count(d.Namespaces, "namespace")))
	}
	lines = append(lines, d.NamespaceProblems...)
	if more := d.NamespaceProblemsTotal - len(d.NamespaceProblems); more > 0 {
		lines = append(lines, fmt.Sprintf("not listed: %s of its namespaces", count(more, "problem")))
	}
	if i := d.Ingress; i != nil {
		lines = append(lines, i.Problems...)
		if more := i.ProblemsTotal - len(i.Problems); more > 0 {
			lines = append(lines, fmt.Sprintf("not listed: %s of its Ingresses", count(more, "problem")))
		}
	}
	if len(d.UnknownFields) > 0 {
		lines = append(lines, fmt.Sprintf("unknown fields in objects of %s: this build leaves them out", strings.Join(d.UnknownFields, ", ")))
	}
	return lines
}

func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprint(n, " ", thing)
}

// metrics returns those that only API servers have.
func metrics() []upstreams.Metric {
	metric := func(desc *prometheus.Desc, values func(d *Detail, emit func(float64, ...string))) upstreams.Metric {
		return upstreams.Metric{Desc: desc, Type: prometheus.GaugeValue, Values: func(st *upstreams.Status, emit func(float64, ...string)) {
			if d, ok := st.Detail.(*Detail); ok {
				values(d, emit)
			}
		}}
	}
	return []upstreams.Metric{
		metric(upstreams.NewDesc("relay_upstream_ingresses", "Ingresses of the cluster that are converted, refused, or left out because they are of another class or can not be converted at all.", "outcome"), func(d *Detail, emit func(float64, ...string)) {
			if i := d.Ingress; i != nil {
				emit(float64(i.Converted), "converted")
				emit(float64(i.Refused), "refused")
				emit(float64(i.Ingresses-i.Converted), "left-out")
			}
		}),
		metric(upstreams.NewDesc("relay_upstream_ingress_problems", "Parts of Ingresses of the cluster that are left out, or that no request reaches."), func(d *Detail, emit func(float64, ...string)) {
			if d.Ingress != nil {
				emit(float64(d.Ingress.ProblemsTotal))
			}
		}),
		metric(upstreams.NewDesc("relay_upstream_namespaces", "Namespaces of the cluster that discoverySelectors choose, or leave out.", "outcome"), func(d *Detail, emit func(float64, ...string)) {
			if d.Namespaces > 0 {
				emit(float64(d.Selected), "chosen")
				emit(float64(d.Namespaces-d.Selected), "left-out")
			}
		}),
	}
}
