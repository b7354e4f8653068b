package executor

import "time"

// MainWithPatience is Main with another time for storing a state.
func MainWithPatience(gitHelper []string, patience time.Duration) error {
	return start("", gitHelper, patience)
}
