// Package githosts reads the credentials for git servers that an agent's
// configuration names. It reads them for each run, so a replaced secret serves the
// next one. For a GitHub App it requests installation tokens.
//
// A credential that cannot be read is no error here: the run may need another, or
// none. The caller learns of it when it needs that credential.
//
// The package must not know git.
package githosts
