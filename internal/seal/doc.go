// Package seal makes what is secret unreadable on its way through the database,
// and tells what an agent of the cluster made from what anybody could have made:
// age messages to a cluster's key, and MACs under keys that are derived from its
// private half. A variable's message also says where its value may be used.
//
// It must not know the queue, provisions or files: who calls it says for what
// purpose a MAC is, and where an identity came from.
//
// # Why a message names where it is for
//
// Age does not say who made a message, and anyone who can read a snapshot can copy
// a message out of it. So a sealed variable names its cluster, workspace, template
// repository and variable inside, and opens nowhere else. It names the workspace
// and not its id, because a first deploy has no id yet; the cluster goes by the
// name that the agent wrote down when it first registered, because the database
// could give another id.
//
// Text and numbers have at least 8 bytes, and booleans are refused: a log could
// not mask shorter ones. A message can be written in one way only, since one that
// reads in two ways might hide a limit.
package seal
