// Package charts tests the Helm charts of this directory: it compares what they render
// with the schemas of Kubernetes, with snapshots and with what each case expects.
// Wrong values must be refused with an error that helps.
//
// A chart's tests are two tables: renderings, run by testRenderings, and
// refusals, run by testRefusals. Helm and kubeconform are real; no cluster is
// asked, so what only an API server knows is not tested here.
//
// All files of the agent are one projected volume: the configuration and the
// mounts are made by the same lines. The data directory lies below its mount,
// because a volume's own directory belongs to root. Pod labels have no version: a
// new chart alone is no reason to end what runs. The schema names a wrong key;
// templates refuse what depends on several values and say the remedy.
package charts
