package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/timelimit"
)

// minMajor is the oldest PostgreSQL that the SQL contract runs on.
const minMajor = 15

// binaries is one installation of the server's programs.
type binaries struct {
	dir     string
	version string // "17.5"
	major   int
}

func (b binaries) postgres() string { return filepath.Join(b.dir, "postgres") }
func (b binaries) initdb() string   { return filepath.Join(b.dir, "initdb") }

// Find returns the directory with the newest PostgreSQL server programs,
// version 15 or later, that are installed on this machine.
func Find() (string, error) {
	ctx := context.Background()
	found, err := find(ctx, installed(ctx), 0)
	return found.dir, err
}

// missingError says that no usable PostgreSQL is installed.
type missingError struct {
	major    int      // the one that was wanted; 0 = any from minMajor
	rejected []string // what was found and why it will not do
}

func (e *missingError) Error() string {
	want := fmt.Sprintf("PostgreSQL %d or newer", minMajor)
	if e.major != 0 {
		want = fmt.Sprintf("PostgreSQL %d (which the data was made with)", e.major)
	}
	text := "no " + want + " was found on this machine"
	if rejected := slices.Compact(slices.Sorted(slices.Values(e.rejected))); len(rejected) > 0 {
		text += " (" + strings.Join(rejected, "; ") + ")"
	}
	return text
}

// locate settles which programs serve a data directory: those asked for, else
// ones in the directories of installed, else downloaded ones. Data has to be served by the major
// version that made it; 0 means that there is no data yet.
func locate(ctx context.Context, o Options, installed []string, dir string, major int) (binaries, error) {
	if o.BinDir != "" {
		found, err := inspect(ctx, o.BinDir)
		switch {
		case err != nil:
			return binaries{}, err
		case major != 0 && found.major != major:
			return binaries{}, fmt.Errorf("the data in %s was made with PostgreSQL %d, but %s has PostgreSQL %s: use programs of version %d", dir, major, o.BinDir, found.version, major)
		}
		return found, nil
	}
	downloads := filepath.Join(dir, "postgres-bin")
	kept, _ := filepath.Glob(filepath.Join(downloads, "*", "bin"))
	found, err := find(ctx, append(kept, installed...), major)
	missing, ok := errors.AsType[*missingError](err)
	if !ok {
		return found, err
	}
	fetched, err := fetch(ctx, o, downloads, major)
	if err != nil {
		if ctx.Err() != nil {
			return binaries{}, fmt.Errorf("downloading PostgreSQL: %w", context.Cause(ctx))
		}
		return binaries{}, fmt.Errorf("%w, and it could not be downloaded (%w): %s", missing, err, howToInstall(major))
	}
	return inspect(ctx, fetched)
}

// howToInstall says what to do without programs of a version, 0 for any: a package
// of that name exists on Debian only, so the others are named for new data alone.
func howToInstall(major int) string {
	if major == 0 {
		return "install it with one of apt-get install postgresql, dnf install postgresql-server, brew install postgresql, or name a mirror of npm's registry in " + repositoryEnv
	}
	return fmt.Sprintf("install that version (apt-get install postgresql-%d, brew install postgresql@%d), or begin with an empty data directory", major, major)
}

// find returns the newest usable programs among dirs, or a *missingError.
func find(ctx context.Context, dirs []string, major int) (binaries, error) {
	missing := &missingError{major: major}
	var usable []binaries
	for _, dir := range dirs {
		found, err := inspect(ctx, dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			missing.rejected = append(missing.rejected, err.Error())
		case major != 0 && found.major != major:
			missing.rejected = append(missing.rejected, fmt.Sprintf("%s has %s", dir, found.version))
		default:
			usable = append(usable, found)
		}
	}
	if ctx.Err() != nil {
		return binaries{}, fmt.Errorf("looking for PostgreSQL: %w", context.Cause(ctx))
	}
	if len(usable) == 0 {
		return binaries{}, missing
	}
	// The first of equals: dirs come in order of preference.
	return slices.MaxFunc(usable, func(a, b binaries) int { return a.major - b.major }), nil
}

// installed lists the directories where systems put the server's programs,
// which is seldom on PATH.
func installed(ctx context.Context) []string {
	var dirs []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	if path, err := exec.LookPath("pg_config"); err == nil && trusted(path) == nil {
		limited, cancel := timelimit.Context(ctx, answerLimit)
		defer cancel()
		if out, err := exec.CommandContext(limited, path, "--bindir").Output(); err == nil {
			dirs = append(dirs, strings.TrimSpace(string(out)))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",          // Debian
		"/usr/pgsql-*/bin",                   // postgresql.org's RPMs
		"/usr/libexec/postgresql*",           // Alpine
		"/usr/local/pgsql/bin",               // built from source
		"/opt/homebrew/opt/postgresql@*/bin", // Homebrew, Apple silicon
		"/usr/local/opt/postgresql@*/bin",    // Homebrew, Intel
		"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		found, _ := filepath.Glob(pattern)
		dirs = append(dirs, found...)
	}
	return dirs
}

// answerLimit is how long a program may take to say its version or its directory.
const answerLimit = 30 * time.Second

// trusted reports why a program is not run: it, or its directory, is neither this
// user's nor root's, or everybody may write to it.
func trusted(program string) error {
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return fmt.Errorf("looking for PostgreSQL's programs: %w", err)
	}
	for _, path := range []string{real, filepath.Dir(real), filepath.Dir(program)} {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("looking for PostgreSQL's programs: %w", err)
		}
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 && int(owner.Uid) != os.Geteuid() {
			return fmt.Errorf("%s is not run: %s belongs to another user (uid %d)", program, path, owner.Uid)
		}
		if info.Mode().Perm()&0o002 != 0 {
			return fmt.Errorf("%s is not run: everybody may write to %s", program, path)
		}
	}
	return nil
}

// inspect asks the programs in dir for their version. Where they are missing
// the error is fs.ErrNotExist.
func inspect(ctx context.Context, dir string) (binaries, error) {
	b := binaries{dir: dir}
	for _, path := range []string{b.postgres(), b.initdb()} {
		if err := trusted(path); err != nil {
			return b, err
		}
	}
	ctx, cancel := timelimit.Context(ctx, answerLimit)
	defer cancel()
	out := &timelimit.Head{Limit: 4 << 10}
	cmd := exec.CommandContext(ctx, b.postgres(), "--version")
	cmd.Stdout, cmd.Stderr = out, out
	err := timelimit.Why(ctx, cmd.Run())
	if timelimit.Reached(ctx) {
		return b, fmt.Errorf("%s --version %w", b.postgres(), err)
	}
	if err != nil {
		return b, fmt.Errorf("%s does not run (%s)%s", b.postgres(), exitText(err), quote(out.String()))
	}
	// postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)
	_, rest, _ := strings.Cut(out.String(), "(PostgreSQL) ")
	b.version, _, _ = strings.Cut(strings.TrimSpace(rest), " ")
	digits := strings.IndexFunc(b.version+".", func(r rune) bool { return r < '0' || r > '9' })
	major, err := strconv.Atoi(b.version[:digits]) // also of 18beta1
	if err != nil {
		return b, fmt.Errorf("%s says no version: %q", b.postgres(), strings.TrimSpace(out.String()))
	}
	if b.major = major; major < minMajor {
		return b, fmt.Errorf("%s is PostgreSQL %s, too old", dir, b.version)
	}
	return b, nil
}
