// Package metrics is what a control plane tells Prometheus of itself: every name
// is made here, and nowhere else, so that docs/monitoring can be held against it.
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
