// Package tools offers a control plane to language models by the Model Context
// Protocol: tools, resources and prompts over the REST client, so that a model sees
// and does what the person could whose token it has, and no more.
//
//	trellis mcp (stdio) ──┐
//	/mcp (HTTP) ── Site ──┴─▶ Server ─▶ tools ─▶ client ─▶ REST (network, or in process)
//
// What a model reads it may obey. So text of others (logs, descriptions, outputs, names
// that are no plain words) comes between marks that it can't close, and what a tool
// changes waits for a person unless the token says otherwise. The database keeps that
// rule; the tools ask for approval as well, so that a plan waits even if they err.
//
// An answer has at most mostAnswer bytes, and names the next step. A value of a
// sensitive variable is never a parameter. Each call is limited per token and audited
// with the digest of its arguments.
//
// The package must not know the database, nor decide what anybody may do.
package tools
