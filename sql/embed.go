// Package sql is the contract between control plane and agents, and the code
// that brings a database up to it.
//
//	migrations/      tables, columns, indexes, policies, first rows: a baseline, and
//	                 numbered files that go forward from it
//	migrations/old/  brings a database that is older than the baseline to it; nothing
//	                 else, and it goes with the next major version
//	functions/       every function, trigger and grant once, as it is now, one file a
//	                 topic; a file is applied when its text has changed. Grants are in
//	                 access.sql, which first takes every right away
//
//	version 0 ──────────────▶ baseline ─┐
//	version 1 to 39 ──▶ old ────────────┼──▶ later migrations ──▶ functions ──▶ what the
//	baseline and later ─────────────────┘                                      migrations say
//	                                                                  comes after the functions
//
// All of that is one statement in one transaction, which `trellis migrate` runs and
// `trellis migrate --print` prints.
//
// The comment above a function is its documentation: what it does, then Arguments,
// Answers, Errors, Locks (rows of orgs, clusters, workspaces, provisions, claims and
// agents, in this order), Callers and Notes (for maintainers). Tests compare it
// with the function and its grants; docs/CONTRACT.md is made from these comments and
// from those on tables and columns: go test ./sql -run Contract -update.
//
// What must hold is written in SQL; this package must know nothing of
// provisions.
//
// # Rules for functions
//
// Rows are locked in one order: organisation, cluster, workspace, provision, claim,
// agent, then what belongs to a run. Several workspaces are locked by id. What
// reaps or settles skips locked rows, because it is called with later ones held.
// Each header in functions/ says what its function locks, and tests compare.
//
// A platform's offers change, so fit_platform runs at every migrate: it adds tables
// to Realtime's publication and a job to pg_cron, and prints what another role must
// run. Published tables are written at most once a second for each run, because
// every write goes to every viewer.
package sql

import "embed"

//go:embed migrations/*.sql migrations/old/*.sql
var migrations embed.FS
