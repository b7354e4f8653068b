package terraform

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"slices"

	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/provision"
)

// The engine has a flag that keeps it from changing the lock file,
// -lockfile=readonly. It is not used: a lock file made on another platform has
// the checksums of all archives, with which init verifies what it downloads,
// but of unpacked packages only those of that platform. Unless init may add its
// own, plan refuses the package. What else the flag prevents is checked when
// init has ended, before the engine has started any provider.

// providerLock is the lock file as it was before init; nil without one.
type providerLock providers.Lock

func (r *Runner) readProviderLock() (providerLock, error) {
	lock, err := providers.ReadLock(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, provision.Fail(provision.CodeInitFailed, fmt.Sprintf("%s init cannot obey the template's lock file: %s", r.engine.Kind, err), err)
	}
	return providerLock(lock), nil
}

// check fails unless init left the lock file as it was but for more checksums
// of what is locked, and without the providers that are not needed.
func (l providerLock) check(r *Runner) error {
	if l == nil {
		return nil
	}
	left, err := r.readProviderLock()
	if err != nil {
		return err
	}
	for _, address := range slices.Sorted(maps.Keys(left)) {
		was, named := l[address]
		is := left[address]
		var wrong string
		switch {
		case !named:
			wrong = fmt.Sprintf("the template needs %s, which the lock file does not name", address)
		case is.Version != was.Version:
			wrong = fmt.Sprintf("the template needs %s %s, and the lock file has %s", address, is.Version, was.Version)
		case slices.ContainsFunc(was.Hashes, func(h string) bool { return !slices.Contains(is.Hashes, h) }):
			wrong = fmt.Sprintf("the checksums that the lock file has for %s %s were not kept", address, was.Version)
		default:
			continue
		}
		return provision.Fail(provision.CodeInitFailed, fmt.Sprintf(
			"%s init did not keep to %s: %s. Run \"%[1]s init\" and \"%[1]s providers lock -platform=%[4]s_%[5]s\" in the template, commit %[2]s, and deploy that version.",
			r.engine.Kind, providers.LockFileName, wrong, runtime.GOOS, runtime.GOARCH), nil)
	}
	return nil
}
