// Package devstack is `trellis up`: everything on one machine, in one data
// directory. It starts what is needed in order, and ends it in reverse:
//
//	lock ─ PostgreSQL ─ migrations ─ organisation, cluster, token ─ templates ─ agent ─ HTTP
//
// What the data directory holds:
//
//	lock              flock'ed by the Stack that owns the directory; its pid inside
//	runtime.json      how other programs reach the running Stack, 0600; gone when it ends
//	postgres/         the private server's (package postgres), unless a database is given
//	token             the cluster's agent token, 0600
//	agent-login.json  the role that the agent logs in as, and its password, 0600
//	tendril.toml      the agent's configuration, 0600, written at each start
//	agent/            the agent's data directory, with the state of what was deployed
//	agent.log         what the agent says
//	templates/        the sample templates as bare git repositories
//	pve-sim/          token and certificate of a simulated Proxmox cluster, if one is wanted
//
// State survives a restart. The agent is a child process that ends with its
// parent; so is PostgreSQL.
//
// The package must know nothing of terminals and flags: it tells a Reporter.
package devstack
