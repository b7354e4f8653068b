package terraform

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/hashicorp/hc-install/product"
	"github.com/hashicorp/hc-install/releases"
)

// vendorURL is where hc-install downloads from unless it is told otherwise.
const vendorURL = "https://releases.hashicorp.com"

// installTimeout bounds one download, retries included.
const installTimeout = 10 * time.Minute

// lockPoll is how often a waiting installer looks whether the other is done.
const lockPoll = 100 * time.Millisecond

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
	lock := flock.New(filepath.Join(home, ".lock"))
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		return Engine{}, fmt.Errorf("wait for another installation of %s: %w", s.kind, err)
	}
	defer lock.Unlock() //nolint:errcheck // closing the file, which ends the lock, has no other way to fail
	s.sweep(home)
	for _, path := range s.installed() { // somebody else's work, while we waited
		if engine, ok := s.try(ctx, path); ok {
			return engine, nil
		}
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
	name := s.kind + " (newest version)"
	if s.want != nil {
		name = s.kind + " " + s.want.String()
	}
	progress(fmt.Sprintf("Installing %s from %s", name, redact(from)))
	binary, err := s.fetch(ctx, staging)
	if err != nil {
		if ctx.Err() != nil {
			return Engine{}, fmt.Errorf("install %s: %w", name, context.Cause(ctx))
		}
		return Engine{}, s.missing(fmt.Sprintf(
			"downloading it from %s failed: %s. Install it, put the binary into the agent's engine directory, or set a mirror that the agent can reach",
			redact(from), truncate(strings.ReplaceAll(reason(err), from, redact(from)), 512)), nil)
	}
	if err := publishable(staging, binary); err != nil {
		return Engine{}, fmt.Errorf("install %s: %w", name, err)
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

// fetch has hc-install download, verify and unpack.
func (s *search) fetch(ctx context.Context, dir string) (string, error) {
	var key string
	if s.cfg.PublicKeyFile != "" {
		armoured, err := os.ReadFile(s.cfg.PublicKeyFile)
		if err != nil {
			return "", fmt.Errorf("the signing key cannot be read: %w", err)
		}
		key = string(armoured)
	}
	mirror := strings.TrimRight(s.cfg.MirrorURL, "/")
	var source interface {
		SetLogger(*log.Logger)
		Install(context.Context) (string, error)
	} = &releases.LatestVersion{
		Product: product.Terraform, InstallDir: dir, Timeout: installTimeout, ApiBaseURL: mirror, ArmoredPublicKey: key,
	}
	if s.want != nil {
		source = &releases.ExactVersion{
			Product: product.Terraform, Version: s.want, InstallDir: dir, Timeout: installTimeout, ApiBaseURL: mirror, ArmoredPublicKey: key,
		}
	}
	var heard strings.Builder
	source.SetLogger(log.New(&heard, "", 0))
	binary, err := source.Install(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		// hc-install loses every error of the download itself, a wrong checksum
		// among them, and stumbles over the missing binary. (In a directory
		// that had one, it would call that a success.) Its log knows better.
		if strings.Contains(heard.String(), "checksum does not match") {
			return "", errors.New("the archive's checksum is not the signed one, so it was damaged or exchanged on its way")
		}
		return "", errors.New("the archive is incomplete or damaged")
	}
	return binary, err
}

// publishable makes an installed engine executable for every user, since
// provisions may run as users of their own, and puts it on disk before a
// rename makes it count.
func publishable(dir, binary string) error {
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(binary, 0o755)); err != nil { //nolint:gosec // see above
		return err
	}
	file, err := os.OpenFile(binary, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// reason is an installer's error in one line.
func reason(err error) string {
	if strings.Contains(err.Error(), "unable to verify checksums signature") {
		return "the signature of its checksums does not match the signing key"
	}
	return strings.Join(strings.Fields(err.Error()), " ")
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
