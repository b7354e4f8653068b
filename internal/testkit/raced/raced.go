// Package raced lets programs that tests build run with the race detector when the tests
// do, and only then: it makes them several times slower.
//
// It must not know which programs these are.
package raced

import (
	"runtime/debug"
	"slices"
)

// Flags are what to give go build.
func Flags() []string {
	info, ok := debug.ReadBuildInfo()
	if ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return []string{"-race"}
	}
	return nil
}
