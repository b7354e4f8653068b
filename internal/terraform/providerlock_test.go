package terraform

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/provision"
)

// lockEntry is what a lock file says of one provider.
func lockEntry(name, version string, hashes ...string) string {
	return fmt.Sprintf("provider \"registry.terraform.io/acme/%s\" {\n  version = %q\n  hashes = [%s]\n}\n",
		name, version, strings.Join(quoted(hashes), ", "))
}

func quoted(texts []string) []string {
	var all []string
	for _, text := range texts {
		all = append(all, fmt.Sprintf("%q", text))
	}
	return all
}

// What an engine may make of the template's lock file, and what it may not.
func TestLockFileOfTheTemplateIsObeyed(t *testing.T) {
	t.Parallel()
	const none = "none"
	a := lockEntry("a", "1.0.0", "h1:mac", "zh:all")
	tests := []struct{ name, before, after, want string }{
		{"as it was", a, a, ""},
		{"a checksum more", a, lockEntry("a", "1.0.0", "zh:all", "h1:linux", "h1:mac"), ""},
		{"constraints noted", a, strings.Replace(a, "hashes", "constraints = \"~> 1.0\"\n  hashes", 1), ""},
		{"a provider less", a + lockEntry("b", "2.0.0", "zh:b"), a, ""},
		{"all gone", a, none, ""},
		{"none before", none, a, ""},
		{"a provider more", a, a + lockEntry("b", "2.0.0", "zh:b"), "the template needs registry.terraform.io/acme/b, which"},
		{"nothing locked", "", a, "the template needs registry.terraform.io/acme/a, which"},
		{"another version", a, lockEntry("a", "1.0.1", "h1:mac", "zh:all"), "acme/a 1.0.1, and the lock file has 1.0.0"},
		{"another checksum", a, lockEntry("a", "1.0.0", "h1:linux", "zh:all"), "for registry.terraform.io/acme/a 1.0.0 were not kept"},
		{"no checksums", a, lockEntry("a", "1.0.0"), "for registry.terraform.io/acme/a 1.0.0 were not kept"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f, r := newFake(t, "locks", Options{})
			for path, content := range map[string]string{filepath.Join(r.dir, providers.LockFileName): test.before, filepath.Join(f.dir, "lock"): test.after} {
				if content == none {
					continue
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := r.Init(t.Context(), InitOptions{})
			if test.want == "" {
				if err != nil {
					t.Errorf("Init() error = %v, want none", err)
				}
				return
			}
			wantContains(t, "message", wantCode(t, err, provision.CodeInitFailed).Message, test.want,
				"terraform providers lock -platform="+runtime.GOOS+"_"+runtime.GOARCH, "commit .terraform.lock.hcl")
		})
	}
}

// An engine that did its work, and could only not be written about, is no
// reason to take its providers.
func TestLockFileIsCheckedOnAFullDisk(t *testing.T) {
	t.Parallel()
	f, r := newFake(t, "locks", Options{Stdout: writerError(func() error { return fmt.Errorf("no space left") })})
	lock := filepath.Join(r.dir, providers.LockFileName)
	for _, path := range []string{lock, filepath.Join(f.dir, "lock")} {
		if err := os.WriteFile(path, []byte(lockEntry("a", "1.0.0", "zh:all")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Init(t.Context(), InitOptions{}); err == nil || !strings.Contains(err.Error(), ErrOutput.Error()) {
		t.Errorf("Init() error = %v, want %q", err, ErrOutput)
	}
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_ = wantCode(t, r.Init(t.Context(), InitOptions{}), provision.CodeInitFailed)
}

// The engine is not run with a lock file that cannot be compared afterwards.
func TestLockFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for want, write := range map[string]func(path string) error{
		"no ordinary file":            func(path string) error { return os.Symlink("main.tf", path) },
		"has 1048577 bytes":           func(path string) error { return os.WriteFile(path, make([]byte, 1<<20+1), 0o600) },
		".terraform.lock.hcl:1,1-9: ": func(path string) error { return os.WriteFile(path, []byte("provider"), 0o600) },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			f, r := newFake(t, "locks", Options{})
			if err := write(filepath.Join(r.dir, providers.LockFileName)); err != nil {
				t.Fatal(err)
			}
			failure := wantCode(t, r.Init(t.Context(), InitOptions{}), provision.CodeInitFailed)
			wantContains(t, "message", failure.Message, "terraform init cannot obey the template's lock file: ", want)
			if calls := f.read("calls"); calls != "" {
				t.Errorf("engine calls = %q, want none", calls)
			}
		})
	}
}
