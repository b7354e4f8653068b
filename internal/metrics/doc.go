// Package metrics counts and measures what an agent does, for Prometheus. Each
// Metrics has a registry of its own, so that several agents may live in one
// process.
//
// Names, types and labels are a promise to whoever has made a dashboard or an
// alert of them: testdata/names.golden lists them, and they change with the
// changelog only. Every label has few values, known beforehand, whatever a
// template or a database says; none is a workspace, a repository or a person.
//
// It must not know how provisions are claimed and run: an agent tells it, and is
// asked when somebody scrapes.
package metrics
