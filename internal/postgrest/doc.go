// Package postgrest is the wire between an agent and PostgREST, as far as the
// client (queue/rpcqueue) and our own server (controlplane/rpcgateway) must
// agree on it: where a function is called, the names of the headers, the body
// of an error, and which HTTP status a SQLSTATE becomes.
//
// Package testkit/recorded has exchanges from PostgREST's documentation that hold both
// sides to it.
//
// It must know neither side: no requests are made or answered here, and nothing
// of what the functions do.
package postgrest
