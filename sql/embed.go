// Package sql is the contract between control plane and agents: numbered,
// forward-only migrations, and the code that brings a database up to them.
//
// What must hold is written in the migrations; this package must know nothing
// of provisions.
package sql

import "embed"

//go:embed migrations/*.sql
var migrations embed.FS
