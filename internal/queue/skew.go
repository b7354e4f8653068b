package queue

import (
	"errors"
	"fmt"
)

// contractTooNew is the reason of a database that is older than the agent.
const contractTooNew = "contract_too_new"

// RegisterOneOlder has an agent registered by its contract or, where the
// database does not know that yet, by the one before: it is given nothing then
// that takes the newer one, and all else is as it was. A database that is older
// still refuses it.
func RegisterOneOlder(agent Agent, register func(Agent) (Registration, error)) (Registration, error) {
	registration, err := register(agent)
	refusal := tooNew(err)
	if refusal == nil || agent.Contract <= 1 {
		return registration, err
	}
	agent.Contract--
	registration, err = register(agent)
	if tooNew(err) == nil {
		return registration, err
	}
	refusal.Hint = fmt.Sprintf(`the database may be one contract older than the agent, and not more. Run "trellis migrate" of a release that speaks contract %d or %d against it first, or use an older agent`,
		agent.Contract, agent.Contract+1)
	return Registration{}, refusal
}

// tooNew returns the database's refusal of an agent for its contract, or nil.
func tooNew(err error) *Error {
	if e, is := errors.AsType[*Error](err); is && e.Reason == contractTooNew {
		return e
	}
	return nil
}
