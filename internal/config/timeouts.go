package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// Timeouts are limits on runs by operation.
type Timeouts map[string]Duration

// UnmarshalText reads OPERATION=DURATION,… as it stands in the environment.
func (t *Timeouts) UnmarshalText(text []byte) error {
	read := Timeouts{}
	for _, part := range splitList(string(text)) {
		operation, value, ok := strings.Cut(part, "=")
		if !ok {
			return fmt.Errorf("no OPERATION=DURATION")
		}
		var limit Duration
		if err := limit.UnmarshalText([]byte(value)); err != nil {
			return err
		}
		read[operation] = limit
	}
	if *t = read; len(read) == 0 {
		*t = nil
	}
	return nil
}

// String is what UnmarshalText reads.
func (t Timeouts) String() string {
	var parts []string
	for _, operation := range slices.Sorted(maps.Keys(t)) {
		parts = append(parts, operation+"="+shortDuration(t[operation]))
	}
	return strings.Join(parts, ",")
}

func (t Timeouts) valid() bool {
	for operation, limit := range t {
		if !knownOperation(operation) || !limit.within(time.Second, 168*time.Hour) {
			return false
		}
	}
	return true
}

func (t Timeouts) byOperation() map[provision.Operation]time.Duration {
	if len(t) == 0 {
		return nil
	}
	limits := make(map[provision.Operation]time.Duration, len(t))
	for operation, limit := range t {
		limits[provision.Operation(operation)] = limit.Duration
	}
	return limits
}
