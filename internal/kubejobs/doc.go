// Package kubejobs carries runs out as Jobs of Kubernetes, each with a runner in its one pod: it is
// an agent.Launcher. It must not know the queue, templates or what an order holds.
//
//	Start ─ a Job ─ Kubernetes ─ a pod ─ runner ─ its first line in the pod's log ─▶ Hello
//	Hand  ─ a Secret, the Job's ─ a volume of the pod ─▶ runner
//	Ended ◀─ the pod's end, as Kubernetes saw it, and its last lines
//
// Two watches, of the Jobs and pods with this agent's label, say what happens; only why a pod does
// not start is asked for, every few seconds.
// What is in a Job, a pod or its environment is for all of the namespace to read. The Secret holds
// a message sealed to a key that exists in the pod's memory alone.
package kubejobs
