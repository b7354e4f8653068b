package queue

import (
	"errors"
	"fmt"
	"strings"
)

// Kind is what an error means for the caller.
type Kind int

// The kinds of error a queue returns.
const (
	// Unavailable: the database could not be reached or asks to try again.
	// Repeating is safe.
	Unavailable Kind = iota
	// Unauthorized: the token is unknown, revoked or expired (PT401).
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
	Err     error  // the transport's own error; may be nil
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

// KindOfState maps a SQLSTATE and the stable word that comes with it, the same
// on every transport. The contract's own refusals (PT4xx) are final, and so is
// what a statement will meet again (bad data, violated constraints, missing
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
	case strings.HasPrefix(state, "PT4"), strings.HasPrefix(state, "22"), strings.HasPrefix(state, "23"), strings.HasPrefix(state, "42"):
		return Refused
	default:
		return Unavailable
	}
}
