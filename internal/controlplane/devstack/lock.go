package devstack

import (
	"errors"
	"fmt"

	"github.com/tendril-run/tendril/internal/dirlock"
)

// InUseError says that another Stack runs on the data directory.
type InUseError struct{ *dirlock.InUseError }

func (e *InUseError) Error() string {
	return fmt.Sprintf("trellis up runs already on %s (%s): use that one, stop it, or choose another --data-dir", e.Dir, e.Holder)
}

// lockDataDir takes the directory for this process. It fails with an *InUseError
// while another Stack has it.
func lockDataDir(dir string) (*dirlock.Lock, error) {
	lock, err := dirlock.Take(dir, dirlock.Self("trellis up"))
	if inUse, ok := errors.AsType[*dirlock.InUseError](err); ok {
		return nil, &InUseError{inUse}
	}
	return lock, err
}
