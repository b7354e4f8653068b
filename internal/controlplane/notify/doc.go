// Package notify tells others by HTTP what happens: it sends what the database
// has put before each webhook, signs it, and tries again when it does not arrive.
//
//	status changes ──trigger──▶ deliveries ──take (SKIP LOCKED)──▶ attempt ──▶ settle
//	                                ▲                                            │ again later, with jitter,
//	                                └────────────────────────────────────────────┘ for a day; then given up
//
// Any number of trellis processes may do so at once; each message is one's at a
// time. One that dies leaves it to the others a minute later, so a receiver may get
// a message twice, and knows it by its id.
//
// Messages are signed as the Standard Webhooks specification says. The package
// must not know who may set up a webhook: that is the database's.
package notify
