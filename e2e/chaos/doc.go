// Package chaos breaks a running system on purpose and then counts: every
// provision ended, log rows 1…n without gap or repeat against what the engine
// printed, applies per workspace never overlapping, the state as it was
// reported, and nothing left behind. TestLives does all of it at once, in random
// lives of workspaces.
//
// A short suite runs with all other tests; TENDRIL_CHAOS=full (make chaos)
// injects many more faults. TENDRIL_TEST_QUEUE says how agents reach the queue: postgres,
// pgbouncer, https or key; else that is drawn for each test. It has
// no code of its own to ship.
package chaos
