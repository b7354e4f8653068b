// Package canonical decides when two spellings name the same thing: a
// repository, a directory in it, a workspace. Everything that compares one of
// these compares the canonical form: approval rules, pins, the catalogue, the
// binding of a workspace, the agent's allowlist, and what a sealed value is for.
//
//	spelling ──ParseRepository──▶ canonical form      https://git.example/acme/app
//	                         └──▶ refused, with the form to use
//
// The database decides the same in sql/functions/canonical.sql. Both are tested
// with the tables in testdata, so a new rule begins with a new case there.
//
// The package must not know its callers, and imports nothing of this module.
package canonical
