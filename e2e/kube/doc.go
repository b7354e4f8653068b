// Package kube installs the charts on a real Kubernetes API server, with its
// controllers and etcd but no node: objects are admitted, pods and claims are
// made, accounts may or may not, upgrades keep what they must, and no container
// ever runs. The tests have the build tag kube: `make e2e-kube` builds what they
// need, and runs them. They know nothing of what the programs do; package charts
// tests what is rendered.
package kube
