// Package rpcgateway answers agents as PostgREST would: the agent functions, and
// only those, by POST under /rest/v1/rpc/. An agent that is set up for Supabase
// runs against it unchanged.
//
// A request goes through these steps, and is answered where one refuses it:
//
//	address (rate) ─ API key ─ path, method, media types ─ body ─ signature ─ catalogue ─ call ─ answer
//
// Which arguments a function has, and of which types, is read from the
// database, so a migration needs no new gateway. Each call is one transaction
// as role anon: what it may do is decided in SQL. It is sent in one round trip,
// by the extended protocol, with every value as a bound parameter, so that no
// input becomes SQL, and neither values nor token hashes get into a log.
//
// A request that prefers to wait is held while its function has nothing to tell (held.go).
// Which topics it waits for, the function says in SQL; one session that listens wakes all held
// calls of this process.
//
// The package must not know what the functions do, nor who may call them.
//
// It keeps no state that another process could not have, so several may serve one
// database. docs/GATEWAY.md says where it differs from PostgREST, and what one
// client can take from the others.
package rpcgateway
