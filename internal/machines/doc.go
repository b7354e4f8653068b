// Package machines is the document that a workspace's machines are recorded in, and what a
// plan would change of it. It is the managed state of templates that make machines, as
// Terraform's state is of others.
//
//	what the template wants ─┐
//	                         ├─► NewPlan ─► what people approve ─► the same is carried out
//	State, as last stored  ──┘
//
// A machine is known by its name within the workspace and marked by its id, which the plan
// gives it and which it keeps. Before anything is done to a machine, what is about to be
// done is in the document as an Intent. An intent that is still there the next time means
// that a run died in between: the machine may exist.
//
// The document has credentials, so it is stored sealed. The package must not know who makes
// machines, nor how the document is stored.
package machines
