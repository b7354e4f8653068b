// Package planbundle stores a plan that needs approval, with everything that must be
// the same when it is applied: what the bundle holds, how it is written, and how it
// is sealed on its way through the database.
//
// A bundle is written as two lines and two files, in this order:
//
//	tendril plan 2
//	{"provision":"…","workspace":"…","workspace_name":"…","operation":"apply","commit":"…",…,"lock":1234,"plan":56789}
//	(the lock file, so many bytes as the header says; then the plan file)
//
// The header is one line of JSON with every field of Bundle, in that order, and
// the two lengths. A bundle can be written in one way only: whatever decodes is
// what Encode makes of it. So its digest, SHA-256 of the whole in hexadecimal,
// stands for its content, and is what a person approves.
//
// It leaves its agent as an age message to the cluster's key, with a MAC of the
// content under a key that is derived from the cluster's identity: who can only
// write rows can neither read nor make one.
//
// The package must not know the queue, files, or how a plan is made and applied.
//
// An engine refuses a plan of another version or with other providers. It does not
// ask whether files, variables or the place of the state are the same; so the
// bundle names them, and the agent that applies compares. Not in the bundle are
// the template's scripts and modules: their configuration is in the plan, and a
// module with a mutable source may have changed.
package planbundle
