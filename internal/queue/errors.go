package queue

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind is what an error means for the caller.
type Kind int

// The kinds of error a queue returns.
const (
	// Unavailable: the database could not be reached or asks to try again.
	// Repeating is safe.
	Unavailable Kind = iota
	// Unauthorized: the token is unknown, revoked or expired (PT401), or the database
	// does not let the queue's user in. It may when either has been changed.
	Unauthorized
	// Superseded: another boot of this instance has taken over (PT409,
	// agent_superseded). This process must claim nothing more.
	Superseded
	// ClaimLost: the claim is no longer this agent's (PT409, claim_lost).
	ClaimLost
	// CancelRequested: apply must not begin, a cancel came first (PT409, cancel_requested).
	CancelRequested
	// Refused: the database says no, and will say so again (any other PT4xx).
	Refused
)

// Error is an answer of the database, the same on every transport.
type Error struct {
	Kind    Kind
	Code    string // SQLSTATE, such as PT409; "" when there was no answer
	Reason  string // a stable word, such as tag_moved; the DETAIL of the SQL error
	Message string // for people
	Hint    string // what to do; may be empty
	// RetryAfter is how long the other side asks to be left alone; 0: it does not.
	RetryAfter time.Duration
	Err        error // the transport's own error; may be nil
}

func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return fmt.Sprintf("%s (%s)", e.Message, e.Hint)
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of err. An error that is not a queue Error counts as
// Unavailable: nothing is known about it, and repeating is safe.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Unavailable
}

// Wait returns how long to wait before a call that ended in err is repeated: d,
// or longer where the answer asked for it.
func Wait(err error, d time.Duration) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return max(d, e.RetryAfter)
	}
	return d
}

// NoContract is what to do where the functions of the contract are missing.
const NoContract = "this database has no Tendril contract, or an older one: run \"trellis migrate\" against it"

// Answer makes an Error of an SQL error, the same on every transport. doing says
// what was tried, for messages that are not the contract's own.
func Answer(doing, state, message, detail, hint string) *Error {
	e := &Error{Kind: KindOfState(state, detail), Code: state, Reason: detail, Message: message, Hint: hint}
	if strings.HasPrefix(state, "PT") {
		return e
	}
	e.Message, e.Reason = fmt.Sprintf("could not %s: %s (SQLSTATE %s)", doing, message, state), ""
	if state == "42883" || state == "3F000" {
		e.Kind, e.Hint = Refused, NoContract
	}
	return e
}

// KindOfState maps a SQLSTATE and the stable word that comes with it, the same
// on every transport. The contract's own refusals (PT4xx) are final, but for being
// slow or too many, and so is what a statement will meet again (bad data, violated constraints, missing
// objects or privileges: classes 22, 23, 42). The rest (shutting down, out of
// connections, deadlock) passes.
func KindOfState(state, reason string) Kind {
	switch {
	case state == "PT401":
		return Unauthorized
	case state == "PT409" && reason == "agent_superseded":
		return Superseded
	case state == "PT409" && reason == "claim_lost":
		return ClaimLost
	case state == "PT409" && reason == "cancel_requested":
		return CancelRequested
	case state == "PT408", state == "PT429":
		return Unavailable
	case strings.HasPrefix(state, "PT4"), strings.HasPrefix(state, "22"), strings.HasPrefix(state, "23"), strings.HasPrefix(state, "42"):
		return Refused
	default:
		return Unavailable
	}
}
