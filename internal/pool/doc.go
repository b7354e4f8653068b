// Package pool makes machines in pools: a cluster of hypervisors, or a list of machines that
// exist. It is what carries out provisioner "machine".
//
//	executor ── tendril-provisioner/1 ──► Handler ──► Driver (proxmox · libvirt · ironic · static)
//	                                        └─ reserve: the database says which node
//
// Handler answers the requests of the provisioners' protocol, as an external program would:
// intents, adoption after a crash, steps and state are that protocol's. A Driver knows one kind
// of hypervisor and nothing of runs.
//
// A machine bears its id where the hypervisor shows it (a description, metadata). It is found
// by that mark alone, and what bears another or none is never touched, whatever id or name the
// state has for it. That a machine is gone is said only by a hypervisor that answered.
//
// Where all pools of a run have drivers that are Detachers, the handler is detachable: what is being
// made is told as soon as it bears its mark, and left going on when the agent asks for that.
//
// It must not know the queue, the database or the agent; places are asked for by a function
// that it is given.
package pool
