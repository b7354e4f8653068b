package scripts

import (
	"archive/tar"
	"compress/gzip"
	"debug/elf"
	"debug/macho"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/version"
)

const sums = "dist/SHA256SUMS"

// A release of one platform, made twice, and with TENDRIL_TEST_FAULTS=all of a Mac, for which
// everything is compiled once more; else TestMac checks what a compiler would.
func TestRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: no release is built")
	}
	t.Parallel()
	pgtest.Tool(t, "helm")
	r := ourRepository(t)
	r.must("git", "tag", "v1.2.3")
	withMac, platforms := os.Getenv("TENDRIL_TEST_FAULTS") == "all", "linux/"+runtime.GOARCH
	if withMac {
		platforms += " darwin/arm64"
	}
	environ := []string{"PLATFORMS=" + platforms, "VERSION=", "DIST=", "DIRTY=", "MAKEFLAGS="}
	if err := os.MkdirAll(filepath.Join(r.dir, "dist"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.write("dist/tendril_1.2.2_linux_amd64", "of the last release")
	r.write("dist/bench.txt", "of somebody else")
	if _, stderr, code := r.run(environ, "make", "release"); code != 0 {
		t.Fatalf("make release: exit status %d\n%s", code, stderr)
	}

	var listed []string
	for line := range strings.Lines(r.must("cat", sums)) {
		listed = append(listed, strings.Fields(line)[1])
	}
	end := "_1.2.3_linux_" + runtime.GOARCH
	const mac = "trellis_1.2.3_darwin_arm64"
	want, programs := []string{"THIRD-PARTY-LICENSES.txt"}, []string{"tendril" + end, "tendril-dispatcher" + end, "trellis" + end}
	if withMac {
		programs = append(programs, mac)
	}
	for _, program := range programs {
		want = append(want, program, program+".cdx.json", program+".tar.gz")
	}
	charts, err := filepath.Glob(filepath.Join(r.dir, "charts/*/Chart.yaml"))
	if err != nil || len(charts) == 0 {
		t.Fatalf("there are no charts (%v)", err)
	}
	for _, chart := range charts {
		name := filepath.Base(filepath.Dir(chart)) + "-1.2.3.tgz"
		want = append(want, name)
		about := r.must("helm", "show", "chart", "dist/"+name)
		for _, line := range []string{"\nversion: 1.2.3\n", "appVersion: 1.2.3\n"} {
			if !strings.Contains("\n"+about, line) {
				t.Errorf("%s is of\n%s\nwant %q", name, about, line)
			}
		}
	}
	slices.Sort(want)
	if slices.Sort(listed); !slices.Equal(listed, want) {
		t.Errorf("SHA256SUMS has %q, want %q", listed, want)
	}
	present := strings.Fields(r.must("ls", "dist"))
	if want = append(want, "SHA256SUMS", "bench.txt"); len(present) != len(want) {
		t.Errorf("dist has %q, want %q", present, want)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
	check.Dir = filepath.Join(r.dir, "dist")
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("sha256sum -c: %v\n%s", err, out)
	}
	for _, program := range []string{"tendril", "tendril-dispatcher", "trellis"} {
		wantProgram(t, r, program, "dist/"+program+end)
		wantArchive(t, filepath.Join(r.dir, "dist", program+end+".tar.gz"), program+end, program)
	}
	if texts := r.must("cat", "dist/THIRD-PARTY-LICENSES.txt"); !strings.Contains(texts, "github.com/jackc/pgx/v5") || !strings.Contains(texts, "Jack Christensen") {
		t.Error("THIRD-PARTY-LICENSES.txt does not have the licence of pgx")
	}

	wantBill(t, r, "dist/tendril"+end, "tendril", false)
	wantBill(t, r, "dist/tendril-dispatcher"+end, "tendril-dispatcher", false)
	wantBill(t, r, "dist/trellis"+end, "trellis", true)
	if withMac {
		wantMac(t, r, mac)
	}

	// Whoever has downloaded it verifies it as we tell them, elsewhere, keeping
	// things private, and at home further east.
	if err := os.WriteFile(filepath.Join(r.dir, "dist", "verify.sh"), []byte(pages.Block(t, "docs/UPGRADING.md", "sha256sum", "linux_amd64", "linux_"+runtime.GOARCH)), 0o644); err != nil {
		t.Fatal(err)
	}
	again := repository{t, filepath.Join(r.dir, "dist")}
	if stdout, stderr, code := again.run(append(environ, "TZ=Asia/Tokyo", "GOFLAGS=-buildvcs=true", "GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=url."+r.dir+".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/tendril-run/tendril"),
		"bash", "-c", "umask 077; set -euo pipefail; . ./verify.sh"); code != 0 {
		t.Errorf("the same commit has not made the same: exit status %d\n%s%s", code, stdout, stderr)
	}
}

// wantMac looks at the program for Macs.
func wantMac(t *testing.T, r repository, mac string) {
	t.Helper()
	if program, err := macho.Open(filepath.Join(r.dir, "dist", mac)); err != nil || program.Cpu != macho.CpuArm64 {
		t.Errorf("%s is not for a Mac: %v", mac, err)
	}
	wantArchive(t, filepath.Join(r.dir, "dist", mac+".tar.gz"), mac, "trellis")
	wantBill(t, r, "dist/"+mac, "trellis", false) // the console is not in it
}

// The command line compiles for the other platforms of a release, on which nothing is tested: its
// types are checked with those of all that it imports.
func TestMac(t *testing.T) {
	t.Parallel()
	loaded, err := packages.Load(&packages.Config{
		Context: t.Context(), Dir: "..", Env: append(os.Environ(), "GOOS=darwin", "GOARCH=arm64", "CGO_ENABLED=0"),
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesSizes,
	}, "./cmd/trellis")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	packages.Visit(loaded, nil, func(p *packages.Package) {
		count++
		for _, err := range p.Errors {
			t.Errorf("%s: %v", p.PkgPath, err)
		}
	})
	if count < 300 {
		t.Errorf("%d packages are checked, want the command line with all that it imports", count)
	}
}

// wantProgram looks at a program of the release.
func wantProgram(t *testing.T, r repository, program, path string) {
	t.Helper()
	commit := strings.TrimSpace(r.must("git", "rev-parse", "HEAD"))
	want := version.Info{Version: "1.2.3", Commit: commit, Contract: queue.Contract, Go: runtime.Version(), Platform: "linux/" + runtime.GOARCH}
	var got version.Info
	if err := json.Unmarshal([]byte(r.must("./"+path, "version", "-o", "json")), &got); err != nil || got != want {
		t.Errorf("%s version -o json = %+v, %v, want %+v", program, got, err, want)
	}
	if got := r.must("./"+path, "version"); got != want.Sentence(program)+"\n" {
		t.Errorf("%s version = %q, want %q", program, got, want.Sentence(program))
	}
	file, err := elf.Open(filepath.Join(r.dir, path))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // only read
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			t.Errorf("%s is not static", program)
		}
	}
}

// wantArchive looks at an archive of the release, which has one directory.
func wantArchive(t *testing.T, path, directory, program string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // only read
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]int64{}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		modes[strings.TrimPrefix(header.Name, directory+"/")] = header.Mode
	}
	for name, mode := range map[string]int64{program: 0o755, "LICENSE": 0o644, "README.md": 0o644, "CHANGELOG.md": 0o644, "THIRD-PARTY-LICENSES.txt": 0o644} {
		if modes[name] != mode {
			t.Errorf("%s: mode of %s = %#o, want %#o (has %v)", filepath.Base(path), name, modes[name], mode, modes)
		}
	}
}
