// Package notify sends webhooks: it takes the deliveries that the database has
// queued, signs each message, posts it, and tries again when it does not arrive.
//
//	status changes ──trigger──▶ deliveries ──take (SKIP LOCKED)──▶ attempt ──▶ settle
//	                                ▲                                            │ again later, with jitter,
//	                                └────────────────────────────────────────────┘ for a day; then given up
//
// Any number of trellis processes may share the work; each message belongs to one at
// a time. When a process dies, another takes its messages a minute later, so a
// receiver may get a message twice and recognises it by its id.
//
// Messages are signed as the Standard Webhooks specification says. The package
// must not know who may set up a webhook: the database decides that.
//
// A trigger writes deliveries in the transaction of the change, so no message
// reports what was rolled back. The key is in a file, not in the database: it seals the
// receivers' URLs, and signing secrets are derived from it, so a reader of the
// database can neither send in our name nor to those receivers. An address is
// judged when it is dialled, because a name may stand for another one by then.
package notify
