package contexts_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/contexts"
)

func TestPath(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"HOME": "/home/ada"}, "/home/ada/.config/tendril/trellis.toml"},
		{map[string]string{"HOME": "/home/ada", "XDG_CONFIG_HOME": "/cfg"}, "/cfg/tendril/trellis.toml"},
		{map[string]string{"HOME": "/home/ada", "XDG_CONFIG_HOME": "relative"}, "/home/ada/.config/tendril/trellis.toml"},
		{map[string]string{"HOME": "/home/ada", "TRELLIS_CONFIG": "/x.toml"}, "/x.toml"},
		{nil, ""},
	} {
		if got := contexts.Path(func(name string) string { return tt.env[name] }); got != tt.want {
			t.Errorf("Path(%v) = %q, want %q", tt.env, got, tt.want)
		}
	}
}

// Logins at once are all kept, in a file that is its owner's alone.
func TestUpdateKeepsAll(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "trellis.toml")
	var logins sync.WaitGroup
	for i := range 20 {
		logins.Go(func() {
			if err := contexts.Update(path, func(f *contexts.File) error {
				f.Contexts[fmt.Sprint("c", i)] = contexts.Context{URL: "https://a.example", Token: fmt.Sprint("secret", i)}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	logins.Wait()
	f, err := contexts.Load(path)
	if err != nil || len(f.Contexts) != 20 || f.Contexts["c7"].Token != "secret7" {
		t.Errorf("Load() = %d contexts, %v, want all 20", len(f.Contexts), err)
	}
	for _, name := range []string{path, filepath.Dir(path)} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, %v, want its owner's alone", name, info.Mode(), err)
		}
	}
	if _, err := f.Find("c99"); err == nil || !strings.Contains(err.Error(), "there are: c0, c1,") {
		t.Errorf("Find(c99) = %v, want those that there are", err)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	const good = "current = 'a'\n[contexts.a]\nurl = 'https://a.example'\ntoken = 'hunter2'\n"
	for name, tt := range map[string]struct {
		content string
		mode    os.FileMode
		want    string
	}{
		"readable by others":   {good, 0o644, "can be read or written by others (mode 0644)"},
		"writable by a group":  {good, 0o620, "can be read or written by others"},
		"no TOML":              {"token = hunter2 x", 0o600, "cannot be understood, line 1"},
		"a word nobody knows":  {good + "tokn = 'hunter2'\n", 0o600, "cannot be understood"},
		"as it should be":      {good, 0o600, ""},
		"readable to its user": {good, 0o400, ""},
	} {
		path := filepath.Join(t.TempDir(), "trellis.toml")
		if err := errors.Join(os.WriteFile(path, []byte(tt.content), 0o600), os.Chmod(path, tt.mode)); err != nil {
			t.Fatal(err)
		}
		f, err := contexts.Load(path)
		if tt.want == "" {
			if err != nil || f.Contexts["a"].Token != "hunter2" {
				t.Errorf("%s: Load() = %v, %v, want the context", name, f, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") || len(f.Contexts) > 0 {
			t.Errorf("%s: Load() = %v, %v, want %q and nothing of a token", name, f, err, tt.want)
		}
	}
}
