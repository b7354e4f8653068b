// Package credentials reads, for each run, what its workspace signs in to clouds
// with, as the agent's configuration says. Of two workspaces none gets anything
// of the other's.
//
// It must not know provisions' contents or what runs: it goes by the workspace's
// name alone.
package credentials
