// Package sample fills an organisation with what pages can be judged by:
// clusters that are online, stale and offline, members, templates, and some weeks
// of runs with their logs, of which one goes on, one awaits approval and one has
// failed. Everything comes about by the contract's own functions, in one
// transaction; only times are moved into the past afterwards.
//
// Its clusters are named sample-…: they have no agents, so nothing is ever run
// there. It is for a database that can be thrown away, for runs and what is
// audited cannot be deleted.
package sample
