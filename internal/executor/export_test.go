package executor

import (
	"cmp"
	"time"
)

// MainWithPatience is Main with another time for storing a state, 0 for its own,
// and so many tries, 0 for as many as there is time for.
func MainWithPatience(gitHelper []string, limit time.Duration, tries int) error {
	return start("", gitHelper, patience{time: cmp.Or(limit, pushPatience), tries: tries})
}
