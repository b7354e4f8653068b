package protocol

import "fmt"

// Kind is which rule a program broke.
type Kind string

// The rules. What each says is in docs/PROVISIONERS.md.
const (
	NotJSON         Kind = "not_json"
	NotUTF8         Kind = "not_utf8"
	HalfLine        Kind = "half_line"
	LineTooLong     Kind = "line_too_long"
	TooMuch         Kind = "too_much"          // bytes in all
	TooManyMessages Kind = "too_many_messages" // lines in all
	UnknownType     Kind = "unknown_type"
	Unexpected      Kind = "unexpected" // a type that the request's answer can't have
	BadValue        Kind = "bad_value"
	UnknownMachine  Kind = "unknown_machine"
	NotTargeted     Kind = "not_targeted"
	DuplicateChange Kind = "duplicate_change"
	DuplicateIntent Kind = "duplicate_intent"
	NotApproved     Kind = "not_approved" // an intent that the approved changes don't have
	NoIntent        Kind = "no_intent"    // a machine that was made without an acknowledged intent
	StateTooLarge   Kind = "state_too_large"
	OutputTooLarge  Kind = "output_too_large"
	PlanTooLarge    Kind = "plan_too_large"
	AfterResult     Kind = "after_result"
	NoResult        Kind = "no_result"
	NoAnswer        Kind = "no_answer"   // none in time, after cancel or to describe
	NoExit          Kind = "no_exit"     // none in time after the result
	ExitStatus      Kind = "exit_status" // not 0 after a result that is ok
)

// ViolationError is the error of a program that broke a rule.
type ViolationError struct {
	Kind Kind
	// Request is the type of the request that it answered.
	Request string
	// Line is which line of its output broke the rule, from 1; 0 if none did.
	Line int
	// Problem says what is wrong, and Action what the program's author has to do.
	Problem, Action string
}

func (v *ViolationError) Error() string {
	where := "the provisioner's answer to " + v.Request
	if v.Line > 0 {
		where += fmt.Sprintf(", line %d", v.Line)
	}
	return fmt.Sprintf("%s: %s: %s", where, v.Problem, v.Action)
}
