// Package identity keeps the age identity of a cluster in a file, and moves it from an agent
// that has it to one that has not.
//
//	agent A: tendril identity share FINGERPRINT ── Seal ──▶ a row of the database ── Open ──▶ agent B
//	             B's operator reads FINGERPRINT to A's            A's operator reads the identity's
//	             (of B's key)                                     fingerprint to B's: identity accept
//
// The database carries what is sealed, and anybody who writes to it could put something else
// there. So each side names the other's key, by what two people have compared:
//
//   - A seals to the one key that has the fingerprint which its operator typed. The key itself
//     may come from the database.
//   - B takes an identity only if its public half is the one that B's operator has accepted.
//     Nobody can make another with that public half, so it does not matter who sealed it.
//     Without this, anybody who writes to the database could give B an identity of their own: they
//     would read what B seals, and B would apply plans that they have signed with it.
//
// A certificate carries both fingerprints in place of people: it names B's key and the identity's
// public half, and a key signs it that the configurations of A and B name (policy.identity_certifiers).
//
//	the certifier's machine: tendril identity certify ──▶ a file ──▶ agent B: identity accept --certificate
//	agent B ── the certificate ──▶ a row ──▶ agent A: Verify, then Seal as above
//
// The row is as little believed as the others: A verifies the certificate, and seals to the key that
// the certificate names.
//
// What is sealed names the cluster, the key that it is for and until when it counts, so that a
// copy of it is good for nothing else and not for long.
//
// The package must not know the queue.
package identity
