// Package metrics counts and measures what an agent does, for Prometheus. Each
// Metrics has its own registry, so several agents may live in one process.
//
// Dashboards and alerts depend on names, types and labels: testdata/names.golden
// lists them, and they change only with an entry in the changelog. Every label has few values, known beforehand, whatever a
// template or a database says; none is a workspace, a repository or a person.
//
// It must not know how runs are claimed and executed: the agent reports to it, and
// answers when somebody scrapes.
package metrics
