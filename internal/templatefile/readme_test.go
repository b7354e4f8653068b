package templatefile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/templatefile"
)

// A template's README is told as far as it can be stored; nothing else is read in its place.
func TestReadme(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	write := func(text string) func(string) error {
		return func(file string) error { return os.WriteFile(file, []byte(text), 0o600) }
	}
	for name, c := range map[string]struct {
		make func(file string) error
		want string
	}{
		"text":                       {write("# A network\n"), "# A network\n"},
		"largest":                    {write(strings.Repeat("x", provision.MaxReadme)), strings.Repeat("x", provision.MaxReadme)},
		"too large":                  {write(strings.Repeat("x", provision.MaxReadme+1)), ""},
		"binary":                     {write("\xff\xfe"), ""},
		"nul":                        {write("a\x00b"), ""},
		"a link out of the template": {func(file string) error { return os.Symlink(outside, file) }, ""},
		"a directory":                {func(file string) error { return os.Mkdir(file, 0o700) }, ""},
		"none":                       {func(string) error { return nil }, ""},
	} {
		for _, with := range []string{"", "title = \"A network\"\n"} {
			dir := t.TempDir()
			if err := c.make(filepath.Join(dir, "README.md")); err != nil {
				t.Fatal(err)
			}
			if with != "" {
				if err := os.WriteFile(filepath.Join(dir, templatefile.Name), []byte(with), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			file, err := templatefile.Read(dir)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := file.About().Readme; got != c.want {
				t.Errorf("%s, tendril.hcl %q: the README = %.40q, want %.40q", name, with, got, c.want)
			}
		}
	}
}
