// Package kubejobs tests runs that are Jobs of Kubernetes, on a real node: a kubelet, containerd and
// the servers, in a network namespace of their own. `make e2e-kube` runs it, as root.
//
// It must not know how Jobs are made: it looks at what the API and the database say.
package kubejobs
