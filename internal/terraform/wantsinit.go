package terraform

import (
	"regexp"

	"github.com/tendril-run/tendril/internal/provision"
)

// initWanted is how engines say, in the title of an error, that they do not find
// what init makes. What a template says itself is never in a title.
var initWanted = regexp.MustCompile(`^\S+ \S+ failed(?: for \S+)?(?: on .+? line \d+)?: ` +
	`(?:Backend initialization required|Initialization required|Required plugins are not installed|` +
	`Inconsistent dependency lock file|Module not installed|Module source has changed|Module version requirements have changed)`)

// WantsInit reports whether a command failed for want of an init.
func WantsInit(err error) bool {
	return err != nil && initWanted.MatchString(provision.AsFailure(err).Message)
}
