// Package proxmox makes machines in a cluster of Proxmox VE, over its API.
//
//	Create   find the mark ─► clone ─► configure ─► resize ─► start ─► wait ─► mark as ready
//	            │ found: go on where it stopped
//	Change   find the mark ─► configure ─► resize ─► mark as restarting ─► stop ─► start ─► mark as ready
//	Destroy  find the mark ─► stop ─► delete with its disks
//
// A machine's mark is a line of its description, which is written by the clone itself, so that
// it is there from the first moment. Each step first asks how far the machine is, so that a
// Create that is asked again after a crash goes on. A configuration is changed only with the
// digest that its mark was read with. A machine with another mark, or with none, is left alone,
// whatever VMID the state has for it.
//
// A machine is gone only if every machine of the cluster could be read: the token sees all of
// them (Proxmox leaves out of its lists what a caller may not see, without saying so) and no
// node with machines is offline.
//
// The client is this package's own. github.com/luthermonson/go-proxmox (as of v0.8.2) has all the
// calls, but not all their parameters (a digest for resize, overrule-shutdown). Its client takes
// 502, 503, 595 and 596 without data for success, while adoption after a crash depends on knowing
// that an answer was lost. It gives one error for each 401 and 403, so that nobody learns which
// privilege is missing; it reads answers of any size and follows redirects. Its tests have answers
// of Proxmox VE 6 to 9, which TestVersions reads with this client.
//
// The package must not know runs, plans or the database.
package proxmox
