// Package modules decides where a template's modules may come from. It knows how
// engines write sources; it must not know how modules are fetched, what they
// hold, or what runs.
//
// A source is judged twice: as a configuration writes it, before anything is
// fetched, and as the engine has written it down after that, when the modules
// that modules name are known as well. The second is what counts: it is the
// engine's own reading of the source. The first spares a download.
package modules
