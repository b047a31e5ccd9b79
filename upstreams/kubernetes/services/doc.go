// Package services makes of the Services of a cluster the ServiceEntries that an istiod tells of them, and finds their
// endpoints, and those of selectors.
//
// It owns these rules, and which results change when an input does. It has no I/O, no goroutine, no clock and no log.
// It must not know where its inputs come from, or who reads its outputs. Package federation/services knows what a
// ServiceEntry can express, and how endpoints get into it.
//
// A State is told of Services, EndpointSlices, Pods, Nodes, WorkloadEntries and ServiceExports, in any order. A Service gives the
// ServiceEntry NAMESPACE/synthetic-NAME, without endpoints, as istiods make it (istio
// pilot/pkg/serviceregistry/kube/conversion.go ConvertService, and ServiceToServiceEntry). It has the labels of the
// Service, which an istiod does not tell, and lacks the accounts of alpha.istio.io/kubernetes-serviceaccounts, because
// the trust domain is not known. Endpoints has the rules of endpoints.
//
// A pod has its own labels, and as in an istiod service.istio.io/canonical-name and -revision where it lacks them.
// Without security.istio.io/tlsMode it has the mode disabled, because clients take the account of an endpoint for mTLS.
// Selectors select by its own labels. Texts that many objects share, such as labels, are held once (package unique).
package services
