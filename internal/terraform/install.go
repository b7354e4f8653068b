package terraform

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"github.com/hashicorp/hc-install/product"
	"github.com/hashicorp/hc-install/releases"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/isolation"
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
		Product: product.Terraform, Constraints: s.allowed(), InstallDir: dir, Timeout: s.timeout, ApiBaseURL: mirror, ArmoredPublicKey: key,
	}
	if s.want != nil {
		source = &releases.ExactVersion{
			Product: product.Terraform, Version: s.want, InstallDir: dir, Timeout: s.timeout, ApiBaseURL: mirror, ArmoredPublicKey: key,
		}
	}
	var heard strings.Builder
	source.SetLogger(log.New(&heard, "", 0))
	binary, err := source.Install(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return "", lost(heard.String())
	}
	return binary, err
}

// lost is the error of a download. hc-install loses every one of them, a wrong
// checksum among them, and stumbles over the missing binary. (In a directory
// that had one, it would call that a success.) Its log knows better.
func lost(heard string) error {
	for line := range strings.Lines(heard) {
		if strings.HasPrefix(line, "checksum does not match") {
			return errors.New("the archive's checksum is not the signed one, so it was damaged or exchanged on its way")
		}
		if rest, ok := strings.CutPrefix(line, "failed to calculate hash of "); ok {
			_, cause, _ := strings.Cut(rest, ": ")
			return fmt.Errorf("the download broke off: %s", strings.TrimSpace(cause))
		}
	}
	return errors.New("the archive is incomplete or damaged")
}

// reason is an installer's error in one line.
func (s *search) reason(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "unable to verify checksums signature"):
		return "the signature of its checksums does not match the signing key"
	case strings.Contains(text, context.DeadlineExceeded.Error()):
		return fmt.Sprintf("it did not come within %s", s.timeout)
	}
	return strings.Join(strings.Fields(text), " ")
}

// publishable makes an installed engine executable for every user, since
// provisions may run as users of their own, and puts it on disk before a
// rename makes it count.
func publishable(dir, binary string) error {
	if err := whole(binary); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(binary, 0o755)); err != nil { //nolint:gosec // see above
		return err
	}
	file, err := os.OpenFile(binary, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// whole reports a program that is shorter than its own headers say, as the
// unpacking leaves it that ran out of room: hc-install calls that a success,
// and a program without its last pages may well answer. What is not in Linux's
// format is for others to judge.
func whole(binary string) error {
	file, err := os.Open(binary)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // opened for reading
	info, err := file.Stat()
	if err != nil {
		return err
	}
	magic := make([]byte, len(elf.ELFMAG))
	if _, err := io.ReadFull(file, magic); err != nil {
		return errors.New("the program in it is empty")
	}
	if string(magic) != elf.ELFMAG {
		return nil
	}
	program, err := elf.NewFile(file)
	if err != nil {
		return errors.New("the program in it is cut short")
	}
	for _, section := range program.Sections {
		if section.Type != elf.SHT_NOBITS && section.Offset+section.FileSize > uint64(info.Size()) {
			return errors.New("the program in it is cut short")
		}
	}
	return nil
}

// probe reports why a directory takes no more data.
func probe(dir string) error {
	file, err := os.CreateTemp(dir, "probe-*")
	if err != nil {
		return reasonOf(err)
	}
	_, err = file.Write(make([]byte, 64<<10))
	return reasonOf(errors.Join(err, file.Sync(), file.Close()))
}

// reasonOf is what the system says, without what was done and where.
func reasonOf(err error) error {
	if no, ok := errors.AsType[syscall.Errno](err); ok {
		return no
	}
	return err
}

// Installed are the engines that Locate has downloaded into a directory and would
// download again. What somebody else has put there, of another kind, is none of
// them. It implements caches.Cache.
type Installed struct{ Dir string }

// removedPrefix marks an engine that is being deleted.
const removedPrefix = ".removed-"

// Kind implements caches.Cache.
func (Installed) Kind() string { return "engines" }

func (i Installed) home() string { return filepath.Join(i.Dir, Terraform) }

// Items implements caches.Cache.
func (i Installed) Items() ([]caches.Item, error) {
	var items []caches.Item
	for _, binary := range newestFirst(filepath.Join(i.home(), "*", Terraform), Terraform) {
		dir := filepath.Dir(binary)
		if info, err := os.Lstat(dir); err == nil && info.IsDir() {
			items = append(items, caches.Item{Path: dir, Used: info.ModTime()})
		}
	}
	return items, nil
}

// Remove implements caches.Cache.
func (i Installed) Remove(ctx context.Context, item caches.Item) (bool, error) {
	unlock, claimed, err := caches.Claim(item.Path)
	if !claimed {
		return false, err
	}
	gone := filepath.Join(i.home(), fmt.Sprintf("%s%d", removedPrefix, time.Now().UnixNano()))
	err = os.Rename(item.Path, gone)
	unlock()
	if err != nil {
		return false, err
	}
	return true, isolation.RemoveAllUntil(ctx, gone)
}

// Sweep implements caches.Cache.
func (i Installed) Sweep(ctx context.Context) error {
	left, err := filepath.Glob(filepath.Join(i.home(), removedPrefix+"*"))
	errs := []error{err}
	for _, dir := range left {
		errs = append(errs, isolation.RemoveAllUntil(ctx, dir))
	}
	return errors.Join(append(errs, i.sweepHalves(ctx))...)
}

// sweepHalves deletes what installers that were killed have left, unless one is
// at work, which does it itself.
func (i Installed) sweepHalves(ctx context.Context) error {
	halves, err := filepath.Glob(filepath.Join(i.home(), stagingPrefix+"*"))
	if err != nil || halves == nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, lockPoll)
	defer cancel()
	release, err := caches.Lock(soon, filepath.Join(i.home(), installLock))
	if err != nil {
		if soon.Err() != nil {
			err = nil
		}
		return err
	}
	defer release()
	var errs []error
	for _, dir := range halves {
		errs = append(errs, isolation.RemoveAllUntil(ctx, dir))
	}
	return errors.Join(errs...)
}

// Hold keeps an engine that was installed in installDir from being removed until
// release is called or this process ends, and marks it as used. It reports false
// if it has been removed since it was located; any other engine is nobody's to
// remove.
func (e Engine) Hold(installDir string) (release func(), held bool) {
	dir := filepath.Dir(e.Path)
	installed, err := filepath.EvalSymlinks(installDir)
	if err != nil || !strings.HasPrefix(e.Path, installed+string(filepath.Separator)) {
		return func() {}, true
	}
	if release, held = caches.Hold(dir); !held {
		return nil, false
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // at worst it is downloaded once more
	return release, true
}
