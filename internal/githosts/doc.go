// Package githosts reads the credentials for git servers that an agent's
// configuration names, anew for each run, so that a secret that was replaced
// serves the next one. It asks for a GitHub App's tokens where one is named.
//
// A credential that cannot be read is no error here: the run may need another,
// or none. Whoever needs it is told. The package must not know git.
package githosts
