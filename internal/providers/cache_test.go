package providers

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/providertest"
)

const newest = providertest.Version

func TestWorkspacesShareOneDownload(t *testing.T) {
	t.Parallel()
	for name, lockedTo := range map[string]string{"with a lock file": newest, "without a lock file": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			first, second := s.workspace(lockedTo), s.workspace(lockedTo)
			s.run(first)
			s.wantStored(newest)
			s.run(second)
			s.run(first) // its data directory has links of the first time
			s.wantDownloads(1)
			s.wantStored(newest)
			program, err := filepath.EvalSymlinks(filepath.Join(second, "data", "providers", "registry.terraform.io",
				"hashicorp", "time", newest, platform, providertest.ProgramName(newest)))
			if err != nil || filepath.Dir(program) != s.path(newest) {
				t.Errorf("the workspace runs %s, %v, want the program in %s", program, err, s.path(newest))
			}
		})
	}
}

// A locked and an unlocked template, and two versions, meet in one store.
func TestVersionsLiveSideBySide(t *testing.T) {
	t.Parallel()
	s := newSite(t, "0.14.1", newest)
	dir := s.workspace("0.14.1")
	s.run(dir)
	s.run(s.workspace("")) // takes the newest, not the one that is cached
	s.wantStored("0.14.1", newest)
	s.run(s.workspace(newest))
	s.wantDownloads(2)

	// The workspace moves on; its data directory knows the older version.
	if err := os.Remove(filepath.Join(dir, "source", LockFileName)); err != nil {
		t.Fatal(err)
	}
	s.run(dir)
	s.wantDownloads(2)
	s.wantStored("0.14.1", newest)
}

// Each damage is done to a package of a lock file or to one without, as is drawn; with
// TENDRIL_TEST_FAULTS=all to both.
func TestDamageIsNoticedAndMended(t *testing.T) {
	t.Parallel()
	damages := map[string]func(program string) error{
		"a flipped byte": func(program string) error { return flip(program) },
		"an empty program, as a power cut leaves it": func(program string) error { return os.Truncate(program, 0) },
		"a program removed":                          os.Remove,
		"nothing left": func(program string) error {
			dir := filepath.Dir(program)
			return firstOf(os.RemoveAll(dir), os.Mkdir(dir, 0o700))
		},
	}
	kinds := map[string]string{"locked": newest, "lockless": ""}
	for name, damage := range damages {
		drawn := []string{"locked", "lockless"}[rand.N(2)]
		for kind, lockedTo := range kinds {
			if kind != drawn && os.Getenv("TENDRIL_TEST_FAULTS") != "all" {
				continue
			}
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				known := s.workspace(lockedTo)
				s.run(known)
				program := filepath.Join(s.path(newest), providertest.ProgramName(newest))
				witness := filepath.Join(t.TempDir(), "witness")
				if err := firstOf(os.Chmod(program, 0o755), os.Link(program, witness), damage(program)); err != nil {
					t.Fatal(err)
				}
				before := read(t, witness)
				s.run(s.workspace(lockedTo))
				s.wantDownloads(2)
				s.wantStored(newest)
				if !bytes.Equal(read(t, witness), before) {
					t.Error("the damaged program was written in place, want another in its place")
				}
				s.run(known)
				s.wantDownloads(2)
			})
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// flip changes one byte of a file where it stands.
func flip(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	_, err = file.ReadAt(b, 1000)
	b[0] ^= 1
	_, wrote := file.WriteAt(b, 1000)
	return firstOf(err, wrote, file.Close())
}

// Why links to anything else than accepted packages must never be there: this
// is what the engine does with one, in its own use of a cache.
func TestTheEngineWritesThroughLinks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := s.workspace("")
	shared := filepath.Join(t.TempDir(), "shared")
	s.mirror.Unpack(t, newest, shared)
	program := filepath.Join(shared, providertest.ProgramName(newest))
	if err := flip(program); err != nil {
		t.Fatal(err)
	}
	before := identity(t, program)
	at, _ := newSlot("registry.terraform.io/hashicorp/time", newest)
	cache := New(Options{Store: s.store.dir, Private: filepath.Join(dir, "providers"), Template: filepath.Join(dir, "source")})
	link := at.in(cache.private)
	if err := firstOf(os.MkdirAll(filepath.Dir(link), 0o700), os.Symlink(shared, link)); err != nil {
		t.Fatal(err)
	}
	terraformInit(t, dir, append(s.env(), "TF_PLUGIN_CACHE_DIR="+cache.private))
	if after := identity(t, program); after == before {
		t.Error("the engine left alone what the link leads to, want it written: the rules of this package could be simpler")
	}
}

// The same with this package between them: a package of that version which the
// lock file does not accept.
func TestNothingIsWrittenThroughALink(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	at, _ := newSlot("registry.terraform.io/hashicorp/time", newest)
	other := filepath.Join(t.TempDir(), "other")
	s.mirror.Unpack(t, newest, other)
	if err := flip(filepath.Join(other, providertest.ProgramName(newest))); err != nil {
		t.Fatal(err)
	}
	sum, err := hashPackage(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := firstOf(os.MkdirAll(s.store.dir, 0o700), s.store.publish(t.Context(), other, at, sum, unheld)); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(s.store.path(at, sum), providertest.ProgramName(newest))
	before := identity(t, program)
	s.run(s.workspace(newest))
	if after := identity(t, program); after != before {
		t.Errorf("a package that is not locked was changed: %+v, want %+v", after, before)
	}
	if got, err := hashPackage(s.store.path(at, sum)); err != nil || got != sum {
		t.Errorf("hashPackage() = %s, %v, want %s", got, err, sum)
	}
	s.wantDownloads(1)
	if got := s.packages(); len(got) != 2 {
		t.Errorf("the store holds %v, want both packages", got)
	}
}

// identity tells whether a file was touched. Its change time cannot be set.
func identity(t *testing.T, path string) [4]int64 {
	t.Helper()
	var info syscall.Stat_t
	if err := syscall.Stat(path, &info); err != nil {
		t.Fatal(err)
	}
	return [4]int64{int64(info.Ino), info.Size, info.Ctim.Nano(), info.Mtim.Nano()}
}

func TestPackageFilesAreReadOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.run(s.workspace(newest))
	info, err := os.Stat(filepath.Join(s.path(newest), providertest.ProgramName(newest)))
	if err != nil || info.Mode().Perm() != 0o555 {
		t.Errorf("mode = %v, %v, want 0555", info.Mode(), err)
	}
}

// An earlier run's template may have put anything into the directory that its
// engine used.
func TestWhatARunPlantedIsNotStored(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := s.workspace("")
	at, _ := newSlot("registry.terraform.io/hashicorp/time", newest)
	planted := at.in(filepath.Join(dir, "providers"))
	s.mirror.Unpack(t, newest, planted)
	if err := flip(filepath.Join(planted, providertest.ProgramName(newest))); err != nil {
		t.Fatal(err)
	}
	s.run(dir)
	s.wantDownloads(1)
	s.wantStored(newest)
}

// A mirror on this machine is linked by the engine itself: it is not ours.
func TestOperatorsFilesystemMirror(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	root := t.TempDir()
	at, _ := newSlot("registry.terraform.io/hashicorp/time", newest)
	s.mirror.Unpack(t, newest, at.in(root))
	config := "provider_installation {\n  filesystem_mirror { path = \"" + root + "\" }\n}\n"
	if err := os.WriteFile(s.mirror.ConfigFile(), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s.run(s.workspace(newest))
		s.run(s.workspace(""))
	}
	s.wantDownloads(0)
	if got := s.packages(); len(got) != 0 {
		t.Errorf("the store holds %v, want nothing", got)
	}
	if sum, err := hashPackage(at.in(root)); err != nil || !strings.HasSuffix(s.path(newest), string(sum)) {
		t.Errorf("the mirror's package hashes to %s, %v, want it unchanged", sum, err)
	}
}

func TestTemplateWithoutProviders(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := t.TempDir()
	s.checkOut(dir, map[string]string{"main.tf": `resource "terraform_data" "x" {}`})
	s.run(dir)
	s.wantDownloads(0)
	if got := s.packages(); len(got) != 0 {
		t.Errorf("the store holds %v, want nothing", got)
	}
}

// A template without a lock file is given what it needed the last time.
func TestWhatALocklessTemplateIsGiven(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.run(s.workspace(""))
	dir := t.TempDir()
	at, _ := newSlot("registry.terraform.io/hashicorp/time", newest)
	steps := []struct {
		name      string
		template  string
		linked    bool
		downloads int
	}{
		{"nothing is known of it: anything", `resource "terraform_data" "x" {}`, true, 1},
		{"it needs nothing", `resource "terraform_data" "x" {}`, false, 1},
		{"it needs a provider now, which is not stored twice", plainTemplate, true, 2},
		{"it needed that provider", plainTemplate, true, 2},
	}
	for _, step := range steps {
		_ = os.Remove(filepath.Join(dir, "source", LockFileName)) // of the checkout before
		s.checkOut(dir, map[string]string{"main.tf": step.template})
		s.run(dir)
		if _, err := os.Lstat(at.in(filepath.Join(dir, "providers"))); (err == nil) != step.linked {
			t.Errorf("%s: Lstat(link) error = %v, want a link: %v", step.name, err, step.linked)
		}
		if got := s.mirror.Downloads(); got != step.downloads {
			t.Errorf("%s: %d downloads, want %d", step.name, got, step.downloads)
		}
		s.wantStored(newest)
	}
}

// Without a usable store the runs go on as if there were none.
func TestBrokenStore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if err := os.WriteFile(s.store.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	notices := s.run(s.workspace(newest))
	if got := strings.Join(notices, "\n"); !strings.Contains(got, "The provider cache cannot be used") {
		t.Errorf("notices = %q, want one that says so", got)
	}
	s.wantDownloads(1)
}

// A template that ships a mirror chooses what its packages are called, so they
// are nobody else's.
func TestShippedPackagesAreNotShared(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := s.workspace("")
	shipped := filepath.Join(dir, "source", "terraform.d", "plugins")
	if err := os.MkdirAll(shipped, 0o700); err != nil {
		t.Fatal(err)
	}
	s.run(dir)
	if stored, err := filepath.Glob(filepath.Join(s.store.dir, "*", "*", "*", "*", "*", "*")); err != nil || len(stored) != 0 {
		t.Errorf("stored = %v, %v, want none of a template that ships packages", stored, err)
	}
	if err := os.RemoveAll(filepath.Dir(shipped)); err != nil {
		t.Fatal(err)
	}
	s.run(dir)
	if stored, err := filepath.Glob(filepath.Join(s.store.dir, "*", "*", "*", "*", "*", "*")); err != nil || len(stored) != 1 {
		t.Errorf("stored = %v, %v, want the package of a template that ships none", stored, err)
	}
}

// Where the store has an owner of its own, nothing in it is a file that the
// engine has made.
func TestPublishCopiesForAnotherOwner(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	depth, calls := 0, 0
	s.store.as = func(do func() error) error {
		calls++
		depth++
		defer func() { depth-- }()
		return do()
	}
	at, sane := newSlot("registry.terraform.io/hashicorp/time", providertest.Version)
	sum, ok := parseChecksum(s.h1(providertest.Version))
	if !sane || !ok {
		t.Fatal("no checksum or no slot")
	}
	dir := filepath.Join(t.TempDir(), "package")
	s.mirror.Unpack(t, providertest.Version, dir)
	program := filepath.Join(dir, providertest.ProgramName(providertest.Version))
	held, err := os.OpenFile(program, os.O_RDWR, 0) // as whoever made it could
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close() //nolint:errcheck // what is written is not wanted
	done, err := s.store.use(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if err := s.store.publish(t.Context(), dir, at, sum, unheld); err != nil {
		t.Fatal(err)
	}
	if calls == 0 || depth != 0 {
		t.Errorf("the owner was asked %d times, want each change to be the owner's", calls)
	}
	if _, err := held.WriteAt([]byte("hostile"), 0); err != nil {
		t.Fatal(err)
	}
	if got, err := hashPackage(s.store.path(at, sum)); err != nil || got != sum {
		t.Errorf("what its maker writes to reaches the store: checksum %s, %v, want %s", got, err, sum)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the package that was copied is still there")
	}
}

func TestPublishChecksTheCopy(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.store.as = func(do func() error) error { return do() }
	at, _ := newSlot("registry.terraform.io/hashicorp/time", providertest.Version)
	sum, _ := parseChecksum(s.h1(providertest.Version))
	dir := filepath.Join(t.TempDir(), "package")
	s.mirror.Unpack(t, providertest.Version, dir)
	if err := os.WriteFile(filepath.Join(dir, "more"), []byte("made by a template"), 0o600); err != nil {
		t.Fatal(err)
	}
	done, err := s.store.use(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if err := s.store.publish(t.Context(), dir, at, sum, unheld); err == nil {
		t.Error("publish(something else under that checksum) = nil, want an error")
	}
	if _, err := os.Stat(s.store.path(at, sum)); err == nil {
		t.Error("what has another checksum is in the store")
	}
}
