package terraform

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// mirror is a release server like the vendor's, with one version of a fake
// Terraform, signed with a key of its own.
type mirror struct {
	cfg       job.Engine
	key       *openpgp.Entity
	downloads atomic.Int32
	server    *httptest.Server

	mu    sync.Mutex        // the race detector sees no order between processes
	files map[string][]byte // by the path's last element
	hold  chan struct{}     // the archive waits until it is closed
}

const (
	mirrored     = "1.99.3"
	archiveName  = "terraform_" + mirrored + "_" + runtime.GOOS + "_" + runtime.GOARCH + ".zip"
	checksumName = "terraform_" + mirrored + "_SHA256SUMS"
)

func newMirror(t *testing.T) *mirror {
	t.Helper()
	m := &mirror{key: newKey(t), files: make(map[string][]byte), hold: make(chan struct{})}
	close(m.hold)
	m.publish(t, zipOf(t, testBinary(t)))

	version := fmt.Sprintf(`{"name":"terraform","version":%q,"shasums":%q,"shasums_signature":%q,"builds":[
		{"name":"terraform","version":%q,"os":%q,"arch":%q,"filename":%q,"url":"https://releases.hashicorp.com/terraform/%s/%s"}]}`,
		mirrored, checksumName, checksumName+".sig", mirrored, runtime.GOOS, runtime.GOARCH, archiveName, mirrored, archiveName)
	mux := http.NewServeMux()
	index := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
		}
	}
	mux.HandleFunc("/hashi/terraform/index.json", index(fmt.Sprintf(`{"name":"terraform","versions":{%q:%s}}`, mirrored, version)))
	mux.HandleFunc("/hashi/terraform/"+mirrored+"/index.json", index(version))
	mux.HandleFunc("/hashi/terraform/"+mirrored+"/{file}", func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		content, hold := m.files[r.PathValue("file")], m.hold
		m.mu.Unlock()
		if r.PathValue("file") == archiveName {
			m.downloads.Add(1)
			w.Header().Set("Content-Type", "application/zip")
			select {
			case <-hold:
			case <-r.Context().Done():
				return
			}
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content)
	})
	m.server = httptest.NewServer(mux)
	t.Cleanup(m.server.Close)

	keyFile := filepath.Join(t.TempDir(), "key.asc")
	writeKey(t, keyFile, m.key)
	m.cfg = job.Engine{Install: true, MirrorURL: m.server.URL + "/hashi/", PublicKeyFile: keyFile}
	return m
}

// publish signs an archive and serves it.
func (m *mirror) publish(t *testing.T, archive []byte) {
	t.Helper()
	sums := fmt.Appendf(nil, "%x  %s\n", sha256.Sum256(archive), archiveName)
	var signature bytes.Buffer
	if err := openpgp.DetachSign(&signature, m.key, bytes.NewReader(sums), nil); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[archiveName], m.files[checksumName], m.files[checksumName+".sig"] = archive, sums, signature.Bytes()
}

// holdArchive lets nobody have the archive until release is called.
func (m *mirror) holdArchive() (release func()) {
	hold := make(chan struct{})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hold = hold
	return func() { close(hold) }
}

func newKey(t *testing.T) *openpgp.Entity {
	t.Helper()
	key, err := openpgp.NewEntity("Release Key", "", "release@example.org", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writeKey(t *testing.T, path string, key *openpgp.Entity) {
	t.Helper()
	var armoured bytes.Buffer
	w, err := armor.Encode(&armoured, openpgp.PublicKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(key.Serialize(w), w.Close(), os.WriteFile(path, armoured.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// testBinary is the fake engine's program, which is this one.
func testBinary(t *testing.T) []byte {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// zipOf packs a release of the fake engine.
func zipOf(t *testing.T, binary []byte) []byte {
	t.Helper()
	return zipWith(t, map[string][]byte{"fake-version": []byte(mirrored), "LICENSE.txt": []byte("text"), "terraform": binary})
}

// zipWith packs files in the order of their names.
func zipWith(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// wantNothingIn fails unless a failed installation left nothing but its lock.
func wantNothingIn(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, Terraform))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() != ".lock" {
			t.Errorf("%s was left behind, want nothing", entry.Name())
		}
	}
}

func TestInstall(t *testing.T) {
	t.Setenv("PATH", "")
	for name, want := range map[string]Want{
		"exact version": {Version: mirrored}, "newest version": {}, "newest version admitted": {Constraints: []Constraint{{Text: "~> 1.98"}}},
	} {
		t.Run(name, func(t *testing.T) {
			m, dir := newMirror(t), t.TempDir()
			stale := filepath.Join(dir, Terraform, stagingPrefix+"stale")
			if err := os.MkdirAll(stale, 0o755); err != nil {
				t.Fatal(err)
			}
			var told []string
			for range 2 {
				engine, err := Locate(t.Context(), m.cfg, want, dir, func(s string) { told = append(told, s) })
				if err != nil {
					t.Fatal(err)
				}
				if want := filepath.Join(dir, "terraform", mirrored, "terraform"); engine.Path != want || engine.Version != mirrored {
					t.Errorf("Locate() = %+v, want %s", engine, want)
				}
				if info, err := os.Stat(engine.Path); err != nil || info.Mode().Perm() != 0o755 {
					t.Errorf("mode = %v, %v, want 0755", info.Mode(), err)
				}
			}
			if got := m.downloads.Load(); got != 1 {
				t.Errorf("%d downloads, want 1", got)
			}
			wantContains(t, "progress", strings.Join(told, "\n"), "Installing terraform ", " from http://127.0.0.1:", "Installed terraform "+mirrored)
			if _, err := os.Stat(stale); !os.IsNotExist(err) {
				t.Errorf("Stat(stale staging directory) error = %v, want it swept", err)
			}
		})
	}
}

// Of the releases only one that the template admits is taken.
func TestInstallWithinConstraints(t *testing.T) {
	t.Setenv("PATH", "")
	m, dir := newMirror(t), t.TempDir()
	want := Want{Constraints: []Constraint{{Text: "< 1.99", At: "versions.tf:2"}}}
	_, err := Locate(t.Context(), m.cfg, want, dir, nil)
	wantContains(t, "message", wantCode(t, err, provision.CodeEngineMissing).Message,
		"terraform < 1.99 is not on this agent", "no matching version found", `required_version "< 1.99" (versions.tf:2)`)
	if got := m.downloads.Load(); got != 0 {
		t.Errorf("%d downloads, want none", got)
	}
	wantNothingIn(t, dir)
}

func TestInstallRefuses(t *testing.T) {
	t.Setenv("PATH", "")
	tests := []struct {
		name  string
		spoil func(t *testing.T, m *mirror)
		want  []string
	}{
		{"a wrong checksum", func(_ *testing.T, m *mirror) {
			m.files[archiveName][100] ^= 1
		}, []string{"the archive's checksum is not the signed one", "set a mirror"}},
		{"a wrong signature", func(_ *testing.T, m *mirror) {
			m.files[checksumName] = append(m.files[checksumName], '\n')
		}, []string{"the signature of its checksums does not match the signing key"}},
		{"another's key", func(t *testing.T, m *mirror) {
			writeKey(t, m.cfg.PublicKeyFile, newKey(t))
		}, []string{"the signature of its checksums does not match the signing key"}},
		{"no key file", func(_ *testing.T, m *mirror) { m.cfg.PublicKeyFile = "/does/not/exist" }, []string{"the signing key cannot be read"}},
		{"a version that is not there", func(_ *testing.T, m *mirror) { m.cfg.Version = "1.0.0" }, []string{"404", "set a mirror"}},
		{"an archive that is none", func(t *testing.T, m *mirror) {
			m.publish(t, []byte("not a zip"))
		}, []string{"the archive is incomplete or damaged"}},
		{"a binary that does not run", func(t *testing.T, m *mirror) {
			m.publish(t, zipOf(t, []byte("not a program")))
		}, []string{"delivered does not say its version", "exec format error"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m, dir := newMirror(t), t.TempDir()
			m.cfg.Version = mirrored
			test.spoil(t, m)
			m.cfg.MirrorURL = strings.Replace(m.cfg.MirrorURL, "http://", "http://ann:hunter2@", 1)
			_, err := Locate(t.Context(), m.cfg, Want{}, dir, nil)
			failure := wantCode(t, err, provision.CodeEngineMissing)
			wantContains(t, "message", failure.Message, "terraform "+m.cfg.Version+" is not on this agent: ", "http://127.0.0.1:")
			wantContains(t, "message", failure.Message, test.want...)
			if strings.Contains(fmt.Sprint(failure.Message, failure.Err), "hunter2") {
				t.Errorf("message = %q, cause = %v, want no password", failure.Message, failure.Err)
			}
			wantNothingIn(t, dir)
		})
	}
}

func TestConcurrentInstallsDownloadOnce(t *testing.T) {
	t.Setenv("PATH", "")
	m, dir := newMirror(t), t.TempDir()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if engine, err := Locate(t.Context(), m.cfg, Want{Version: mirrored}, dir, nil); err != nil || engine.Version != mirrored {
				t.Errorf("Locate() = %+v, %v, want version %s", engine, err, mirrored)
			}
		})
	}
	wg.Wait()
	if got := m.downloads.Load(); got != 1 {
		t.Errorf("%d downloads, want 1", got)
	}
}

func TestCancelledInstall(t *testing.T) {
	t.Setenv("PATH", "")
	m, dir := newMirror(t), t.TempDir()
	m.holdArchive() // for ever
	ctx, cancel := context.WithCancelCause(t.Context())
	errs := make(chan error, 2)
	for range cap(errs) { // one downloads, one waits for the lock
		go func() {
			_, err := Locate(ctx, m.cfg, Want{Version: mirrored}, dir, nil)
			errs <- err
		}()
	}
	patience.Await(t, "the download has begun", func() bool { return m.downloads.Load() > 0 })
	cancel(errStop)
	for range cap(errs) {
		if err := <-errs; !errors.Is(err, errStop) && !errors.Is(err, context.Canceled) {
			t.Errorf("Locate() error = %v, want one that wraps %q", err, errStop)
		}
	}
	wantNothingIn(t, dir)
}

func TestInstallReplacesABrokenEngine(t *testing.T) {
	t.Setenv("PATH", "")
	m, dir := newMirror(t), t.TempDir()
	torn := filepath.Join(dir, "terraform", mirrored, "terraform")
	if err := os.MkdirAll(filepath.Dir(torn), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(torn, []byte("\x7fELF"), 0o755); err != nil {
		t.Fatal(err)
	}
	engine, err := Locate(t.Context(), m.cfg, Want{Version: mirrored}, dir, nil)
	if err != nil || engine.Version != mirrored {
		t.Errorf("Locate() = %+v, %v, want version %s", engine, err, mirrored)
	}
}
