package postgres

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	// DefaultRepository is Maven Central, where the embedded-postgres project
	// (https://github.com/zonkyio/embedded-postgres-binaries) publishes
	// PostgreSQL builds that run from any directory.
	DefaultRepository = "https://repo1.maven.org/maven2"

	repositoryEnv = "TENDRIL_POSTGRES_REPOSITORY"

	// newMajor is the version that new data is made with when none is installed.
	newMajor = 17
	// maxArchive bounds a download; the archives have 8 to 40 MB.
	maxArchive = 200 << 20
	// stallLimit is how long a download may bring nothing.
	stallLimit = 30 * time.Second
	// progressEvery is how often a download says how far it has come.
	progressEvery = 2 * time.Second
)

// release is the build that is downloaded for a major version.
func release(major int) (string, bool) {
	version, ok := map[int]string{15: "15.13.0", 16: "16.9.0", 17: "17.5.0", 18: "18.3.0"}[major]
	return version, ok
}

// platform is the published builds' name for this machine.
func platform() (string, bool) {
	arch, ok := map[string]string{"amd64": "amd64", "arm64": "arm64v8", "386": "i386", "ppc64le": "ppc64le"}[runtime.GOARCH]
	if !ok || runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		return "", false
	}
	if _, err := os.Stat("/etc/alpine-release"); runtime.GOOS == "linux" && err == nil {
		arch += "-alpine" // linked against musl
	}
	return runtime.GOOS + "-" + arch, true
}

// fetch downloads PostgreSQL's programs below the directory into and returns
// where they are. The embedded-postgres module could do it, but only on its way
// to starting a server, without a limit, and without saying what went wrong.
func fetch(ctx context.Context, o Options, into string, major int) (string, error) {
	version, ok := release(cmp.Or(major, newMajor))
	if !ok {
		return "", fmt.Errorf("no build of PostgreSQL %d is published for download", major)
	}
	platform, ok := platform()
	if !ok {
		return "", fmt.Errorf("no build of PostgreSQL is published for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	artifact := "embedded-postgres-binaries-" + platform
	url := fmt.Sprintf("%s/io/zonky/test/postgres/%s/%s/%s-%s.jar", repository(o), artifact, version, artifact, version)

	o.say("No PostgreSQL found on this machine: downloading %s", url)
	d := downloader{client: &http.Client{Transport: transport()}, say: o.say, stall: stallLimit}
	defer d.client.CloseIdleConnections()
	sum, err := d.get(ctx, url+".sha256", 1<<10)
	if err != nil {
		return "", err
	}
	archive, err := d.get(ctx, url, maxArchive)
	if err != nil {
		return "", err
	}
	// The same server vouches for both, so this finds accidents, not malice:
	// against that stands TLS.
	want, _, _ := strings.Cut(strings.TrimSpace(string(sum)), " ")
	if got := sha256.Sum256(archive); !strings.EqualFold(hex.EncodeToString(got[:]), want) {
		return "", fmt.Errorf("%s is damaged: its SHA-256 is not the one published beside it", url)
	}
	final := filepath.Join(into, version)
	if err := install(ctx, archive, final); err != nil {
		return "", fmt.Errorf("unpacking %s: %w", url, err)
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

// get returns the body at url, of most bytes at most.
func (d downloader) get(ctx context.Context, url string, most int64) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(d.stall, func() {
		cancel(fmt.Errorf("nothing came from %s for %s", url, d.stall))
	})
	defer stalled.Stop()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", url, resp.Status)
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
			return nil, fmt.Errorf("%s is larger than %d MB", url, most>>20)
		case errors.Is(err, io.EOF):
			return body.Bytes(), nil
		case err != nil:
			return nil, fmt.Errorf("reading %s: %w", url, cmp.Or(context.Cause(ctx), err))
		}
		if time.Since(said) >= progressEvery {
			said = time.Now()
			d.say("  %s", progress(int64(body.Len()), resp.ContentLength))
		}
	}
}

// progress is how much of total (-1: not known) has come.
func progress(done, total int64) string {
	if total <= 0 {
		return fmt.Sprintf("%.1f MB", float64(done)/1e6)
	}
	return fmt.Sprintf("%.1f of %.1f MB (%d %%)", float64(done)/1e6, float64(total)/1e6, done*100/total)
}
