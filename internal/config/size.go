package config

import (
	"fmt"
	"strconv"
	"strings"
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
