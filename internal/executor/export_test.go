package executor

import "time"

// MainWithPatience is Main with another time for storing a state.
func MainWithPatience(patience time.Duration) error { return start("", patience) }
