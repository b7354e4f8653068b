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
	// Unavailable: the database could not be reached, asks to try again, or has no
	// contract to serve at the moment. Repeating is safe.
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
	// ContentRefused: the database can't take what the call carries, and can take
	// the call.
	ContentRefused
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

// Final reports whether an answer is the contract's own last word on a request:
// its refusals, and content that it names as too large or malformed. All else is an
// outage, or may be one.
func Final(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}
	switch e.Kind {
	case Unavailable:
		return false
	case Unauthorized, ContentRefused:
		return strings.HasPrefix(e.Code, "PT4")
	default:
		return true
	}
}

// Wait returns how long to wait before a call that ended in err is repeated: d,
// or longer where the answer asked for it.
func Wait(err error, d time.Duration) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return max(d, e.RetryAfter)
	}
	return d
}
