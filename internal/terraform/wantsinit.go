package terraform

import (
	"regexp"

	"github.com/tendril-run/tendril/internal/provision"
)

// initWanted is how engines say that they do not find what init makes: the
// backend's record, a module, a provider that the lock file names. In automation
// not each of these sentences names the command.
var initWanted = regexp.MustCompile(`(?i)\b(terraform|tofu)\s+init\b|initialization\s+required|required\s+plugins|module\s+not\s+installed|dependency\s+lock\s+file`)

// WantsInit reports whether a command failed for want of an init. It may take
// another failure for one that speaks of it, so what is done about it must do
// no harm then.
func WantsInit(err error) bool {
	return err != nil && initWanted.MatchString(provision.AsFailure(err).Message)
}
