// Package metrics has the metrics of the control plane, for Prometheus. Every name and
// help text is here, and docs/monitoring is generated from them.
//
// Two kinds: what this process does is counted where it is done (by functions
// that are handed to the packages that do it, which need not know Prometheus);
// what stands in the database is asked when somebody scrapes, rarely however
// often that is.
//
// No label has a value that a stranger or a tenant chooses: clusters go by id and
// are bounded in number, paths by the pattern of their route. The package must not
// know where it is served, nor who may read it.
package metrics
