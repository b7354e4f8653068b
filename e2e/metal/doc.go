// Package metal has tests of the whole system on a real OpenStack Ironic with fake hardware: the API
// of servers as document 002 has it, and many deployments at once while agents and Ironic are killed.
// `make e2e-metal` installs what it needs.
//
// It must not know how an agent speaks to Ironic.
package metal
