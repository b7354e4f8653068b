// Package githubapp gets installation tokens of a GitHub App: what an App that
// somebody has installed on their repositories uses in place of a password. A
// token is good for an hour and may read contents, nothing else. The App's
// private key signs the request for it and never leaves the process.
//
// It must not know git, nor what the tokens are for.
package githubapp
