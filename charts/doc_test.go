// Package charts tests the Helm charts beside it: what they render is held
// against the schemas of Kubernetes, against snapshots and against what each
// case says of it, and values that are wrong must be refused in words that help.
//
// A chart's tests are two tables: renderings, run by testRenderings, and
// refusals, run by testRefusals. Helm and kubeconform are real; no cluster is
// asked, so what only an API server knows is not tested here.
package charts
