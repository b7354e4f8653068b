// Package redact hides secrets in what a run prints and reports.
//
//	values ─▶ Secrets ─▶ patterns: each value in every form a log may have it in
//	                        │
//	bytes of a stream ─▶ Stream ─▶ clean ─▶ mask ─▶ text without secrets
//	events of a provisioner ─▶ Pieces ─▶ lines for a Stream
//	a complete text or report ─▶ Secrets.Text, Secrets.Detail
//
// Two kinds of text are replaced by Mask. The values that the caller adds to a
// Secrets are hidden as they are, inside JSON and URLs, in base64 and in
// hexadecimal, whole and line by line. Tokens of well-known kinds, passwords in
// URLs and private keys are hidden though nobody has named them. The table in
// docs/SECURITY.md lists the encodings.
//
// The result does not depend on how the input is cut. A Stream therefore holds
// back what may be the start of a secret, and nothing else, until more bytes
// decide; Flush releases it. Pieces does the same for a secret that continues
// in another event.
//
// Every text that comes out is valid UTF-8 without NUL, as the database stores
// it.
//
// The package must not know spools, queues or processes, nor which values of a
// run are secret: its caller adds them.
package redact
