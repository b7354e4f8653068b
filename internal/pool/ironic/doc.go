// Package ironic makes machines of bare-metal servers, by OpenStack Ironic's API.
//
//	allocation ──► instance_info, extra ──► deploying ⇄ wait call-back ──► active
//	(which server)                                                          │ undeploy
//	available ◄── cleaning ⇄ clean wait ◄── deleting ◄──────────────────────┘
//
// A server is a node of the pool. The database says which one would do, and Ironic's allocation
// decides: others use that Ironic as well, and two allocations never get one server.
//
// The allocation's id is the machine's, so the server's instance_uuid is the machine's mark.
// It is set by the same transaction of Ironic's that gives the server away, so nothing is made
// that bears no mark. A server with another instance_uuid is never touched, whatever name or id
// the state has for it.
//
// Each method reads where the server is, does the next thing, and follows Ironic's state
// machine (states.go) until the end. So what was interrupted at any moment is gone on with. A
// deploy needs nobody who waits for it: the pool's runs can be detached.
//
// It must not know runs, plans or rows.
package ironic
