package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// Size is a number of bytes that TOML writes as text, such as "64MiB".
type Size struct{ Bytes int64 }

// sizeUnits are those a Size may be written in, the largest first.
var sizeUnits = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// UnmarshalText reads a whole number with a unit, or 0.
func (s *Size) UnmarshalText(text []byte) error {
	if string(text) == "0" {
		s.Bytes = 0
		return nil
	}
	for _, unit := range sizeUnits {
		number, ok := strings.CutSuffix(string(text), unit.name)
		if !ok {
			continue
		}
		// So many that no product of it and a unit overflows.
		if n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 32); err == nil && n < 1<<63/uint64(unit.bytes) {
			s.Bytes = int64(n) * unit.bytes
			return nil
		}
	}
	return fmt.Errorf("%q is not a size such as 512KiB, 64MiB or 1GiB", text)
}

// String writes it in the largest unit that leaves no fraction.
func (s Size) String() string {
	if s.Bytes == 0 {
		return "0"
	}
	for _, unit := range sizeUnits {
		if s.Bytes%unit.bytes == 0 {
			return strconv.FormatInt(s.Bytes/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(s.Bytes, 10)
}

// within reports whether s lies between two sizes, both included.
func (s Size) within(least, most int64) bool { return least <= s.Bytes && s.Bytes <= most }

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
