// Package caches keeps what an agent could download again within a limit: what
// was used longest ago goes first, and nothing goes that is in use.
//
// What a cache is made of is known to who fills it (packages source, providers,
// terraform, agent), and so is which locks its removal takes; they implement
// Cache. Two rules hold for all of them:
//
//   - Something is removed by one rename to a name that nobody looks for, and
//     deleted after that. A process that is killed in between leaves what the
//     next start sweeps.
//   - A run holds what it uses (Hold): a shared flock on the directory itself,
//     which ends with the process, however that ends. A removal needs it
//     exclusively (Claim).
//
// Trees may be of somebody who means harm: they are walked and removed without
// following links, opening anything but directories, or holding many names.
//
// It must not know git, providers, engines or workspaces.
package caches
