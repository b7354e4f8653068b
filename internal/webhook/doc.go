// Package webhook has the messages that people's other systems get, and sends one: as JSON
// with the signature of the Standard Webhooks specification, or in Slack's form.
//
// A message has ids, names and counts, never outputs or variables. Redirects are not
// followed: they would lead past what is allowed, with the signature. No error has the
// receiver's URL in it, which may be a secret.
//
// The package must not know who wants messages, when one is sent again, or which addresses
// may be called: that is the caller's.
package webhook
