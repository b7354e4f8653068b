package providers

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/providertest"
)

const h1A = "h1:AjY2lOPKEES+bHE7rbeXuwJGz2qmkwgh0kt1jHz3RGY="

func TestLockedPackages(t *testing.T) {
	t.Parallel()
	sum, _ := parseChecksum(h1A)
	entry := func(address, version, hashes string) string {
		return "provider \"" + address + "\" {\n  version = \"" + version + "\"\n  constraints = \">= 1.0.0\"\n  hashes = [" + hashes + "]\n}\n"
	}
	tests := []struct {
		name, content string
		want          map[slot][]checksum
	}{
		{"as Terraform writes it", "# comment\n" + entry("registry.terraform.io/hashicorp/time", "0.14.2", `"`+h1A+`", "zh:00aa",`),
			map[slot][]checksum{"registry.terraform.io/hashicorp/time/0.14.2/" + slot(platform): {sum}}},
		{"a host with a port", entry("localhost:8443/acme/x", "1.0.0-beta.1", `"`+h1A+`"`),
			map[slot][]checksum{"localhost:8443/acme/x/1.0.0-beta.1/" + slot(platform): {sum}}},
		{"other checksums only", entry("registry.terraform.io/a/b", "1.0.0", `"zh:00aa", "h1:short", "h1:%%%"`),
			map[slot][]checksum{"registry.terraform.io/a/b/1.0.0/" + slot(platform): {}}},
		{"no hashes", "provider \"h/a/b\" {\n version = \"1.0.0\"\n}\n", map[slot][]checksum{"h/a/b/1.0.0/" + slot(platform): {}}},
		{"paths that lead elsewhere", entry("../a/b", "1.0.0", "") + entry("h/a/..", "1.0.0", "") + entry("h/a/b", "..", "") +
			entry("h/a/b", "1/2", "") + entry("h/a", "1.0.0", "") + entry("h/a/b/c", "1.0.0", "") + entry("h//b", "1.0.0", "") +
			entry(".trash-1/a/b", "1.0.0", "") + entry("h/a/b", strings.Repeat("1", 300), ""), map[slot][]checksum{}},
		{"nothing", "", map[slot][]checksum{}},
		{"not HCL", "provider {{", nil},
		{"no version", "provider \"h/a/b\" {}\n", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			lock, err := parseLock([]byte(test.content))
			if (err == nil) != (test.want != nil) {
				t.Fatalf("parseLock() error = %v, want one: %v", err, test.want == nil)
			}
			if err != nil {
				return
			}
			if got := lock.packages(); !reflect.DeepEqual(got, test.want) {
				t.Errorf("packages() = %v, want %v", got, test.want)
			}
		})
	}
}

func TestReadLock(t *testing.T) {
	t.Parallel()
	whole := "provider \"h/a/b\" {\n version = \"1.0.0\"\n hashes = [\"zh:00aa\", \"" + h1A + "\"]\n}\n"
	write := func(size int) func(string) error {
		return func(path string) error {
			return os.WriteFile(path, []byte(whole+strings.Repeat("\n", size-len(whole))), 0o600)
		}
	}
	tests := []struct {
		name string
		make func(path string) error
		want string // of the error
	}{
		{"as large as is read", write(maxLockFile), ""},
		{"larger", write(maxLockFile + 1), "has 1048577 bytes"},
		{"a link", func(path string) error {
			return firstOf(write(len(whole))(path+".shared"), os.Symlink(path+".shared", path))
		}, "no ordinary file"},
		{"a link to nothing", func(path string) error { return os.Symlink("nowhere", path) }, "no ordinary file"},
		{"a directory", func(path string) error { return os.Mkdir(path, 0o700) }, "no ordinary file"},
		{"not HCL", func(path string) error { return os.WriteFile(path, []byte("provider {{"), 0o600) }, LockFileName + ":1"},
		{"no version", func(path string) error { return os.WriteFile(path, []byte(`provider "h/a/b" {}`), 0o600) }, `"version" is required`},
		{"none", func(string) error { return nil }, "no such file"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := test.make(filepath.Join(dir, LockFileName)); err != nil {
				t.Fatal(err)
			}
			got, err := ReadLock(dir)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("ReadLock() = %v, %v, want an error with %q", got, err, test.want)
				}
				return
			}
			if want := (Lock{"h/a/b": {"1.0.0", []string{"zh:00aa", h1A}}}); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("ReadLock() = %v, %v, want %v", got, err, want)
			}
		})
	}
}

// A lock file made on another platform lets the engine verify an archive, and
// no package that is there. The second template of this workspace ships one.
func TestLockFileOfAnotherPlatform(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := s.workspace(newest)
	s.run(dir)
	before := identity(t, filepath.Join(s.path(newest), providertest.ProgramName(newest)))
	lock := "provider \"registry.terraform.io/hashicorp/time\" {\n version = \"" + newest + "\"\n hashes = [\"" + h1A + "\", \"" + s.mirror.ArchiveHash(newest) + "\"]\n}\n"
	for downloads := 2; downloads < 4; downloads++ {
		s.checkOut(dir, map[string]string{LockFileName: lock})
		notices := s.run(dir)
		if got := strings.Join(notices, "\n"); !strings.Contains(got, "providers lock -platform="+platform) {
			t.Errorf("notices = %q, want one that says what to do", got)
		}
		s.wantDownloads(downloads)
		s.wantStored(newest)
	}
	if after := identity(t, filepath.Join(s.path(newest), providertest.ProgramName(newest))); after != before {
		t.Errorf("the stored program was touched: %v, want %v", after, before)
	}
}

// Whatever a template ships, it names places in the store only.
func FuzzLock(f *testing.F) {
	f.Add([]byte("provider \"registry.terraform.io/hashicorp/time\" {\n  version = \"0.14.2\"\n  hashes = [\"" + h1A + "\"]\n}\n"))
	f.Add([]byte("provider \"../../etc\" {\n  version = \"/x\"\n}\n"))
	f.Add([]byte("provider \"a/b/c\" {\n  version = \"..\"\n  hashes = [\"h1:../../x\"]\n}\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		lock, err := parseLock(content)
		if err != nil {
			return
		}
		for at, sums := range lock.packages() {
			if !filepath.IsLocal(string(at)) || filepath.Clean(string(at)) != string(at) || strings.Count(string(at), "/") != slotDepth-1 {
				t.Errorf("slot %q leads elsewhere", at)
			}
			for _, sum := range sums {
				if len(sum) != 64 || strings.Trim(string(sum), "0123456789abcdef") != "" {
					t.Errorf("checksum %q is no file name", sum)
				}
			}
		}
	})
}
