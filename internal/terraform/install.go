package terraform

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// vendorURL is where hc-install downloads from unless it is told otherwise.
const vendorURL = "https://releases.hashicorp.com"

// installTimeout bounds one download, retries included.
const installTimeout = 10 * time.Minute

// lockPoll is how often a waiting installer looks whether the other is done.
const lockPoll = 100 * time.Millisecond

// installLock is held while an engine is installed.
const installLock = ".lock"

// install downloads the engine to installDir/KIND/VERSION/KIND. hc-install
// writes in place and takes no lock, so it gets a directory of its own, which
// is renamed when its binary has answered.
func (s *search) install(ctx context.Context, progress func(string)) (Engine, error) {
	switch {
	case s.kind == OpenTofu:
		return Engine{}, s.missing("install OpenTofu on it, or put the binary into the agent's engine directory "+
			"(Tendril downloads Terraform only)", nil)
	case !s.cfg.Install:
		return Engine{}, s.missing("install it, put the binary into the agent's engine directory, or let the agent download it", nil)
	case s.installDir == "":
		return Engine{}, errors.New("no directory to install engines in")
	}
	home := filepath.Join(s.installDir, s.kind)
	if err := os.MkdirAll(home, 0o755); err != nil { //nolint:gosec // engines are run by other users of this machine
		return Engine{}, fmt.Errorf("make the directory for engines: %w", err)
	}
	lock := flock.New(filepath.Join(home, installLock))
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		return Engine{}, fmt.Errorf("wait for another installation of %s: %w", s.kind, err)
	}
	defer lock.Unlock() //nolint:errcheck // closing the file, which ends the lock, has no other way to fail
	s.sweep(home)
	if engine, ok := s.choose(ctx, slices.Values(s.installed())); ok { // somebody else's work, while we waited
		return engine, nil
	}
	return s.download(ctx, home, progress)
}

// stagingPrefix marks a directory that is being filled.
const stagingPrefix = ".installing-"

// sweep removes what an installer that was killed left; call under the lock.
func (s *search) sweep(home string) {
	stale, err := filepath.Glob(filepath.Join(home, stagingPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range stale {
		_ = os.RemoveAll(dir) // in the way of nobody
	}
}

func (s *search) download(ctx context.Context, home string, progress func(string)) (Engine, error) {
	staging, err := os.MkdirTemp(home, stagingPrefix)
	if err != nil {
		return Engine{}, fmt.Errorf("make a directory to install into: %w", err)
	}
	defer os.RemoveAll(staging) //nolint:errcheck // swept by the next installer

	from := strings.TrimRight(first(s.cfg.MirrorURL, vendorURL), "/")
	name := s.wanted()
	if s.want == nil {
		name += " (newest version)"
	}
	progress(fmt.Sprintf("Installing %s from %s", name, redact(from)))
	binary, err := s.fetch(ctx, staging)
	if err == nil {
		err = publishable(staging, binary)
	}
	if err != nil {
		if ctx.Err() != nil {
			return Engine{}, fmt.Errorf("install %s: %w", name, context.Cause(ctx))
		}
		if full := probe(staging); full != nil { // which explains whatever else is wrong
			return Engine{}, s.missing(fmt.Sprintf("it cannot be installed in %s: %s. Make room there and deploy again", home, full), nil)
		}
		return Engine{}, s.missing(fmt.Sprintf(
			"downloading it from %s failed: %s. Install it, put the binary into the agent's engine directory, or set a mirror that the agent can reach",
			redact(from), truncate(strings.ReplaceAll(s.reason(err), from, redact(from)), 512)), nil)
	}
	said, err := askVersion(ctx, binary)
	if err != nil {
		return Engine{}, s.missing(fmt.Sprintf("what %s delivered %s", redact(from), err), err)
	}
	target := s.installedPath(said)
	// What is there did not serve a moment ago, under this lock.
	if err := os.RemoveAll(filepath.Dir(target)); err != nil {
		return Engine{}, fmt.Errorf("install %s: %w", name, err)
	}
	if err := os.Rename(staging, filepath.Dir(target)); err != nil {
		return Engine{}, fmt.Errorf("install %s: %w", name, err)
	}
	engine, ok := s.try(ctx, target)
	if !ok {
		return Engine{}, s.missing("what "+redact(from)+" delivered does not serve", nil)
	}
	progress(fmt.Sprintf("Installed %s %s", s.kind, said))
	return engine, nil
}

// redact takes the user information out of a mirror's address.
func redact(address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return "the mirror"
	}
	parsed.User = nil
	return parsed.String()
}
