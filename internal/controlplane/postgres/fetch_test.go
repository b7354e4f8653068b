package postgres

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// jar packs testdata/build.txz as a published build: a tar.xz with
// bin/postgres and bin/initdb, scripts that print a version, a symlink to one,
// and share/postgresql.conf.sample.
func jar(t *testing.T) []byte {
	t.Helper()
	build, err := os.ReadFile("testdata/build.txz")
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	for name, content := range map[string][]byte{"META-INF/MANIFEST.MF": nil, "postgres-linux-x86_64.txz": build} {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// serve is a Maven repository with one build.
func serve(t *testing.T, archive []byte, sum string) string {
	t.Helper()
	name, ok := platform()
	if !ok {
		t.Fatal("no build is published for this machine")
	}
	path := "/io/zonky/test/postgres/embedded-postgres-binaries-" + name + "/17.5.0/embedded-postgres-binaries-" + name + "-17.5.0.jar"
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(archive) })
	mux.HandleFunc("GET "+path+".sha256", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(sum)) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func sumOf(archive []byte) string {
	sum := sha256.Sum256(archive)
	return hex.EncodeToString(sum[:])
}

func TestLocateDownloadsWhatIsMissing(t *testing.T) {
	t.Parallel()
	archive, dir := jar(t), newDir(t)
	var said bytes.Buffer
	o := Options{Repository: serve(t, archive, sumOf(archive)) + "/", Log: &said}
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
	archive := jar(t)
	install := "apt-get install postgresql, dnf install postgresql-server, brew install postgresql"
	for _, c := range []struct {
		name       string
		repository string
		installed  []string
		major      int
		want       []string
	}{
		{"unreachable", "http://127.0.0.1:1", nil, 0, []string{"no PostgreSQL 15 or newer was found", "http://127.0.0.1:1/", "connection refused", install}},
		{"too old", "http://127.0.0.1:1", []string{old}, 0, []string{old + " is PostgreSQL 12.1, too old", install}},
		{"damaged", serve(t, archive, sumOf(archive[1:])), nil, 0, []string{"is damaged", install}},
		{"no archive", serve(t, []byte("<html>"), sumOf([]byte("<html>"))), nil, 0, []string{"zip: not a valid zip file", install}},
		{"not there", serve(t, archive, sumOf(archive)), nil, 16, []string{"no PostgreSQL 16 (which the data was made with)", "404 Not Found", install}},
		{"never published", "http://127.0.0.1:1", nil, 99, []string{"no build of PostgreSQL 99 is published", install}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := newDir(t)
			_, err := locate(t.Context(), Options{Repository: c.repository}, c.installed, dir, c.major)
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
