// Package trust decides to whom an agent seals what is secret, and whose orders
// change a managed state: not the database, which carries both, but the agent's
// own configuration.
//
//	policy.requester_keys ──▶ Keyring ──▶ Recipient: may this key be sealed to, for this workspace?
//	                             │
//	                             └──────▶ Signer: does this order come from somebody who may give it?
//
// A Keyring names keys of people, or authorities: the fingerprint of a key whose
// Certificates count, so that people come and go without a change on the agents.
// A Certificate binds a person's two public keys to workspaces and to a time, and
// can be revoked by its id. A Person has one secret from which both keys are
// derived. Certificates and orders are one line of text: kind, JSON, Ed25519
// signature.
//
// The package must not know the queue, snapshots, or where its texts come from.
package trust
