// Package provision holds the nouns of Tendril: what a provision is, the
// states it goes through, the snapshot that asks for it and what comes back.
//
// It is imported by everything and imports internal/canonical alone. It must not know
// how a provision is stored (sql, queue), carried (agent) or run (executor).
package provision
