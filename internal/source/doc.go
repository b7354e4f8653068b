// Package source turns a snapshot's template_source into a verified work tree
// on disk: policy first, then version → commit, then a fetch into a bare
// mirror shared by all provisions of the agent, then the files.
//
// Three things are not trusted: the row that asks (any repository, version or
// path may stand in it, the commit of a fork too), the git server (it may hang,
// lie or send rubbish) and
// the repository's content (names and links that point elsewhere). What is
// written to disk is checked against the commit id, object by object.
//
// The mirror is a cache and may be deleted at any time; what must outlive it,
// the commits that tags meant, lies next to it:
//
//	REPOS/<sha256 of the address>/git         bare mirror: packs of single commits, or of what is new in one
//	REPOS/<sha256 of the address>/tags.json   tag → commit, as first seen
//	REPOS/<sha256 of the address>/reachable/  commits that a branch or tag was found to lead to
//	REPOS/<sha256 of the address>/fetch.lock  held while a pack is fetched
//	REPOS/<sha256 of the address>/use.lock    shared by readers; exclusive to delete the mirror
//
// Readers do not wait for fetches: a pack becomes visible by one rename.
//
// The package must not know Terraform, the queue or how a run is supervised.
package source
