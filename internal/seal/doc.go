// Package seal makes what is secret unreadable on its way through the database,
// and tells what an agent of the cluster made from what anybody could have made:
// age messages to a cluster's key, and MACs under keys that are derived from its
// private half. A variable's message also says where its value may be used.
//
// It must not know the queue, provisions or files: who calls it says for what
// purpose a MAC is, and where an identity came from.
package seal
