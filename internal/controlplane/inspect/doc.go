// Package inspect is how a control plane finds out by itself what a template
// declares: it is given an inspection by the database, checks the version out,
// reads the declarations and stores them. It reads public repositories over
// HTTPS, without any credentials; what it cannot reach it leaves to an agent.
//
// A repository is a stranger's. Each is looked at by a child process, which is
// killed when it takes too long or too much memory, in a directory that is removed
// afterwards; of what it answers a bounded part is read. Beyond that the limits
// of packages source (size, number and names of files, links that lead out) and
// tfvars (regular files only, their size, how deep they nest) hold. The child
// connects to public addresses only, so nobody reaches an internal network by the
// URL of a template; which address a name has is decided where it is dialled.
//
// It must not know people and pages.
package inspect
