// Package agentkey keeps the key with which an agent signs its requests, and gives it a
// form that two people can compare.
//
//	Create ──▶ agent.key ◀── Load
//	Next   ──▶ agent.key.next ── Promote, once the new one is in force ──▶ agent.key
//
// Both files are PKCS#8 in PEM, 0600, in the agent's data directory. A rotation writes the
// next key before the database learns of it, and leaves the old one in place until the next
// one is in force, so an agent that is killed at any moment still has the one that counts.
//
// The fingerprint of a key is SHA-256 of its 32 bytes. Its words are the first 88 bits of
// that, eight words of BIP-39's English list: to find another key with the same words takes
// some 2^88 keys.
//
// The package must not know the queue, nor what is signed.
package agentkey
