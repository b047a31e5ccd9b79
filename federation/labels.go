package federation

// The labels and the annotation of workloads that istiods read (istio.io/api/label and annotation).
const (
	// ClusterLabel tells an istiod which cluster an endpoint belongs to.
	ClusterLabel           = "topology.istio.io/cluster"
	NetworkLabel           = "topology.istio.io/network"
	RegionLabel            = "topology.kubernetes.io/region"
	ZoneLabel              = "topology.kubernetes.io/zone"
	SubzoneLabel           = "topology.istio.io/subzone"
	LocalityLabel          = "istio-locality"
	TLSModeLabel           = "security.istio.io/tlsMode" // how clients connect
	CanonicalNameLabel     = "service.istio.io/canonical-name"
	CanonicalRevisionLabel = "service.istio.io/canonical-revision"
	// HealthChecksAnnotation is that of a WorkloadEntry whose proxy reports its health.
	HealthChecksAnnotation = "proxy.istio.io/health-checks-enabled"
)
