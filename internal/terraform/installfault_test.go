package terraform

import (
	"archive/zip"
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// locateTimed is Locate of the mirrored version with another limit for a
// download.
func locateTimed(t *testing.T, cfg job.Engine, dir string, limit time.Duration) error {
	t.Helper()
	s, err := newSearch(cfg, Want{Version: mirrored}, dir)
	if err != nil {
		t.Fatal(err)
	}
	s.timeout = limit
	_, err = s.install(t.Context(), func(string) {})
	return err
}

// misbehave has the mirror answer requests for one file, or for all ("").
func (m *mirror) misbehave(t *testing.T, file string, handler http.HandlerFunc) {
	t.Helper()
	good := m.server.Config.Handler
	m.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if file == "" || strings.HasSuffix(r.URL.Path, "/"+file) {
			handler(w, r)
			return
		}
		good.ServeHTTP(w, r)
	})
}

func TestInstallFromABadMirror(t *testing.T) {
	t.Parallel()
	html := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<html><body>Please sign in</body></html>"))
	}
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	// half sends half of the archive, and then does as it is told.
	half := func(m *mirror, then http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			content := m.files[archiveName]
			w.Header().Set("Content-Type", "application/zip")
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			_, _ = w.Write(content[:len(content)/2])
			_ = http.NewResponseController(w).Flush()
			then(w, r)
		}
	}
	cut := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	fail := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }
	tests := []struct {
		name    string
		file    string
		handler func(m *mirror) http.HandlerFunc
		limit   time.Duration
		want    string
	}{
		{"the index hangs", "index.json", func(*mirror) http.HandlerFunc { return hang }, time.Second, "it did not come within 1s"},
		{"the archive hangs half-way", archiveName, func(m *mirror) http.HandlerFunc { return half(m, hang) }, 2 * time.Second, "it did not come within 2s"},
		{"the archive is cut", archiveName, func(m *mirror) http.HandlerFunc { return half(m, cut) }, time.Minute, "the download broke off: unexpected EOF"},
		{"the index is HTML", "index.json", func(*mirror) http.HandlerFunc { return html }, time.Minute, "unexpected"},
		{"the checksums are HTML", checksumName, func(*mirror) http.HandlerFunc { return html }, time.Minute, "signature"},
		{"the archive is HTML", archiveName, func(*mirror) http.HandlerFunc { return html }, time.Minute, "unexpected content-type: text/html"},
		{"everything is 500", "", func(*mirror) http.HandlerFunc { return fail }, time.Minute, "giving up after"},
		{"the archive is 500", archiveName, func(*mirror) http.HandlerFunc { return fail }, time.Minute, "giving up after"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m, dir := newMirror(t), t.TempDir()
			m.misbehave(t, test.file, test.handler(m))
			failure := wantCode(t, locateTimed(t, m.cfg, dir, test.limit), provision.CodeEngineMissing)
			wantContains(t, "message", failure.Message, "terraform "+mirrored+" is not on this agent: downloading it from http://127.0.0.1:", test.want, "set a mirror")
			wantNothingIn(t, dir)
		})
	}
}

// The archive arrives, and its program fits into the directory all but for its
// last pages, which a program does not need to answer.
func TestInstallOnAFullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	m := newMirror(t)
	r, err := zip.NewReader(bytes.NewReader(m.files[archiveName]), int64(len(m.files[archiveName])))
	if err != nil {
		t.Fatal(err)
	}
	info, err := r.Open("terraform")
	if err != nil {
		t.Fatal(err)
	}
	stat, err := info.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int64{"no room": 64 << 10, "room for half": stat.Size() / 2, "room for all but the end": stat.Size() - 32<<10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+strconv.FormatInt(size, 10)); err != nil {
				t.Skipf("cannot mount a small file system: %v", err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			err := locateTimed(t, m.cfg, dir, time.Minute)
			failure := wantCode(t, err, provision.CodeEngineMissing)
			wantContains(t, "message", failure.Message, "it cannot be installed in "+filepath.Join(dir, Terraform), "no space left on device", "Make room there")
			wantNothingIn(t, dir)
		})
	}
}
