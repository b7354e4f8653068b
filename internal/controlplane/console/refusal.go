package console

import (
	"errors"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// refusal is the database's no to what a form asked for, to be shown beside the
// form: nil for anything else. One that is our fault or passes is not among them.
func refusal(err error) *store.RefusedError {
	refused, ok := errors.AsType[*store.RefusedError](err)
	if !ok || refused.Status() >= 500 {
		return nil
	}
	return refused
}
