// Package sql is the contract between control plane and agents, and the code
// that brings a database up to it.
//
// migrations/ has tables, columns, indexes, policies, triggers and data:
// numbered, forward only. functions/ has every function once, as it is now, one
// file a topic; a file is applied when its text has changed. Grants stand in
// functions/access.sql, which first takes every right away. (Migrations up to 30
// define functions as well, for databases on their way; what counts is
// functions/.)
//
// What must hold is written in SQL; this package must know nothing of
// provisions.
package sql

import "embed"

//go:embed migrations/*.sql
var migrations embed.FS
