// Package providertest is a provider network mirror over TLS with a real
// provider, for tests of what downloads providers. It counts, and it can hold a
// download half-way. It must not know what is tested.
package providertest

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/mod/sumdb/dirhash"
)

// Source is the provider's address as a template writes it.
const Source = "hashicorp/time"

// Version is the newest version that a mirror has. The package of each version
// holds the same program under another name.
const Version = "0.14.2"

// Platform is the only one that a mirror has.
const Platform = runtime.GOOS + "_" + runtime.GOARCH

// Mirror serves hashicorp/time.
type Mirror struct {
	http     *httptest.Server
	dir      string
	archives map[string][]byte

	mu        sync.Mutex
	downloads int
	held      chan struct{} // nil, or what downloads wait for
	grown     chan struct{} // closed and replaced at each download
}

// NewMirror starts a mirror of these versions, or of Version.
func NewMirror(t testing.TB, versions ...string) *Mirror {
	t.Helper()
	program := program(t)
	if len(versions) == 0 {
		versions = []string{Version}
	}
	m := &Mirror{dir: t.TempDir(), archives: map[string][]byte{}, grown: make(chan struct{})}
	for _, v := range versions {
		m.archives[v] = pack(t, v, program)
	}
	m.http = httptest.NewTLSServer(http.HandlerFunc(m.serve))
	t.Cleanup(m.http.Close)
	t.Cleanup(m.Release) // first, or closing would wait for what is held
	m.write(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.http.Certificate().Raw})))
	m.write(t, "terraformrc", fmt.Sprintf("provider_installation {\n  network_mirror { url = %q }\n}\n", m.http.URL+"/"))
	return m
}

func (m *Mirror) write(t testing.TB, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Env makes an engine use the mirror, as an operator's own configuration would.
func (m *Mirror) Env() []string {
	return []string{"TF_CLI_CONFIG_FILE=" + m.ConfigFile(), "SSL_CERT_FILE=" + filepath.Join(m.dir, "ca.pem")}
}

// URL is where the mirror is; CAEnv has its certificate trusted.
func (m *Mirror) URL() string { return m.http.URL }

// CAEnv is the part of Env that has the mirror's certificate trusted.
func (m *Mirror) CAEnv() []string { return []string{"SSL_CERT_FILE=" + filepath.Join(m.dir, "ca.pem")} }

// ConfigFile is the engine's configuration file that names the mirror.
func (m *Mirror) ConfigFile() string { return filepath.Join(m.dir, "terraformrc") }

// Downloads is how many packages were asked for.
func (m *Mirror) Downloads() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.downloads
}

// AwaitDownloads returns when so many packages were asked for.
func (m *Mirror) AwaitDownloads(t testing.TB, n int) {
	t.Helper()
	for {
		m.mu.Lock()
		enough, grown := m.downloads >= n, m.grown
		m.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-grown:
		case <-t.Context().Done():
			t.Fatalf("the test ended waiting for %d downloads", n)
		}
	}
}

// Hold lets downloads get half of a package, until Release.
func (m *Mirror) Hold() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = make(chan struct{})
}

// Release ends Hold.
func (m *Mirror) Release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held != nil {
		close(m.held)
		m.held = nil
	}
}

func (m *Mirror) serve(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(r.URL.Path, "/registry.terraform.io/hashicorp/time/")
	if !ok {
		name = strings.TrimPrefix(r.URL.Path, "/registry.opentofu.org/hashicorp/time/")
	}
	version, isPackage := strings.CutSuffix(name, ".zip")
	switch {
	case name == "index.json":
		versions := map[string]struct{}{}
		for v := range m.archives {
			versions[v] = struct{}{}
		}
		answer(w, map[string]any{"versions": versions})
	case isPackage && r.Method == http.MethodHead: // Terraform asks for the type first
		w.Header().Set("Content-Type", "application/zip")
	case isPackage:
		m.servePackage(w, r, m.archives[version])
	default:
		version = strings.TrimSuffix(name, ".json")
		answer(w, map[string]any{"archives": map[string]any{Platform: map[string]any{"url": version + ".zip"}}})
	}
}

func (m *Mirror) servePackage(w http.ResponseWriter, r *http.Request, archive []byte) {
	m.mu.Lock()
	m.downloads++
	close(m.grown)
	m.grown = make(chan struct{})
	held := m.held
	m.mu.Unlock()
	w.Header().Set("Content-Type", "application/zip")
	w.Header().Set("Content-Length", strconv.Itoa(len(archive)))
	half := len(archive) / 2
	_, _ = w.Write(archive[:half]) // who has gone needs no more
	if held != nil {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-held:
		case <-r.Context().Done():
			return
		}
	}
	_, _ = w.Write(archive[half:])
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body) // who has gone needs no answer
}

// program is the provider's binary.
func program(t testing.TB) []byte {
	t.Helper()
	path, err := exec.LookPath("terraform-provider-time")
	if err != nil {
		t.Fatalf("these tests run a real provider: \"make deps\" builds it, and the directory of \"make tools-dir\" must be on PATH (%v)", err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// ProgramName is the provider's file in the package of a version.
func ProgramName(version string) string { return "terraform-provider-time_v" + version + "_x5" }

func pack(t testing.TB, version string, program []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	for name, content := range map[string][]byte{ProgramName(version): program, "LICENSE.txt": []byte("text\n")} {
		header := &zip.FileHeader{Name: name, Method: zip.Store}
		header.SetMode(0o755)
		f, err := w.CreateHeader(header)
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

// Unpack writes the package of a version into a directory, as an engine would,
// and returns its h1 checksum.
func (m *Mirror) Unpack(t testing.TB, version, dir string) string {
	t.Helper()
	archive := m.archives[version]
	r, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, r); err != nil {
		t.Fatal(err)
	}
	h1, err := dirhash.HashDir(dir, "", dirhash.Hash1)
	if err != nil {
		t.Fatal(err)
	}
	return h1
}

// ArchiveHash is the checksum of a version's archive, as a lock file has it.
func (m *Mirror) ArchiveHash(version string) string {
	return fmt.Sprintf("zh:%x", sha256.Sum256(m.archives[version]))
}
