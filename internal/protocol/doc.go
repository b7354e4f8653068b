// Package protocol is the agent's side of tendril-provisioner/1: it sends one request to a
// program that was started already, hands on each message of its answer, and refuses what
// breaks the rules of docs/PROVISIONERS.md.
//
//	request ──► program              Talk sends it
//	            program ──► intent   Handlers.Intent records it; Talk sends ack
//	            program ──► machine  Handlers.Mask, then Handlers.Machine
//	ctx ends ─► cancel               and a result is due within CancelTime
//	            program ──► result   then the end of stdout, within ExitTime
//
// Whatever goes wrong, Outcome.Unsettled has the intents that were acknowledged and whose
// machine was not heard from again: it may exist. An error quotes no message, which may
// have credentials.
//
// The package starts and ends no process, since that is the caller's, under the run's
// isolation. It must not know queues, spools or templates. The seed's form of one JSON in
// and one out is in package once.
package protocol
