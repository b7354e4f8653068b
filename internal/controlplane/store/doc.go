// Package store asks the database what people ask: clusters, deploys, logs.
//
// Each request is one transaction that runs as the person who asks (SET LOCAL
// ROLE authenticated, with their claims), so row-level security decides what
// they see and do; there is no second opinion here. A refusal of the database
// comes back as a *RefusedError, a database that is away as an
// *UnreachableError.
//
// It must know nothing of agents' calls (package queue), of how the database
// came to be (package devstack), or of terminals.
package store
