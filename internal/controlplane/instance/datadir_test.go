package instance

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/dirlock"
)

// homes gives the test a home directory, and so a key, of its own.
func homes(t *testing.T) {
	t.Helper()
	for _, name := range []string{"XDG_STATE_HOME", "XDG_DATA_HOME"} {
		t.Setenv(name, filepath.Join(t.TempDir(), name))
	}
}

func claimed(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	if err := ClaimDataDir(dir, false); err != nil {
		t.Fatalf("ClaimDataDir(new) = %v, want nil", err)
	}
	return dir
}

func put(t *testing.T, dir, name, text string, mode fs.FileMode) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

// What another user, another home or a cloned repository has prepared is neither
// read nor used, however exact the copy is.
func TestPreparedDataDirs(t *testing.T) {
	homes(t)
	foreign := filepath.Join(t.TempDir(), "data")
	mine := os.Getenv("XDG_STATE_HOME")
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	if err := ClaimDataDir(foreign, false); err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile(filepath.Join(foreign, markerFile))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_STATE_HOME", mine)
	own := claimed(t) // this also makes the key
	copied, err := os.ReadFile(filepath.Join(own, markerFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		marker string // "" for none
		mode   fs.FileMode
		dir    fs.FileMode
		want   string
	}{
		{"no marker", "", 0, 0o700, "files that trellis up did not make"},
		{"another home's marker", string(theirs), 0o600, 0o700, "not written here by this user's trellis up"},
		{"a copy of another directory's marker", string(copied), 0o600, 0o700, "not written here by this user's trellis up"},
		{"an empty marker", "\n", 0o600, 0o700, "not written here by this user's trellis up"},
		{"a marker that others can read", string(theirs), 0o644, 0o700, "other users may read or write"},
		{"a directory that others write to", string(theirs), 0o600, 0o777, "other users may write to it"},
	} {
		dir := t.TempDir()
		runtime, _ := json.Marshal(Runtime{URL: "http://127.0.0.1:8080", APIToken: "trt_theirs"})
		put(t, dir, RuntimeFile, string(runtime), 0o600)
		put(t, dir, "lock", "1\n", 0o600)
		if c.marker != "" {
			put(t, dir, markerFile, c.marker, c.mode)
		}
		if err := os.Chmod(dir, c.dir); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{"ClaimDataDir": ClaimDataDir(dir, false), "ReadRuntime": second(ReadRuntime(dir))} {
			if untrusted, ok := errors.AsType[*UntrustedError](err); !ok || !strings.Contains(untrusted.Why, c.want) {
				t.Errorf("%s of %s = %v, want it refused: %s", what, c.name, err, c.want)
			}
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestClaimedDataDir(t *testing.T) {
	homes(t)
	dir := claimed(t)
	write := func(url string) {
		t.Helper()
		text, _ := json.Marshal(Runtime{URL: url})
		put(t, dir, RuntimeFile, string(text), 0o600)
	}
	write("http://127.0.0.1:8080")
	if r, err := ReadRuntime(dir); err != nil || r.URL != "http://127.0.0.1:8080" {
		t.Errorf("ReadRuntime(claimed) = %+v, %v, want what was written", r, err)
	}
	if err := ClaimDataDir(dir, false); err != nil {
		t.Errorf("ClaimDataDir(again) = %v, want nil", err)
	}
	for _, url := range []string{"http://192.0.2.1:8080", "https://127.0.0.1.evil.example", "http://evil.example@192.0.2.1", "file:///etc/passwd", ""} {
		write(url)
		if _, err := ReadRuntime(dir); err == nil || !strings.Contains(err.Error(), "not on this machine's loopback") {
			t.Errorf("ReadRuntime() with the server %q = %v, want it refused", url, err)
		}
	}
	text, _ := json.Marshal(Runtime{URL: "http://127.0.0.1:8080", BrowserURL: "http://evil.example"})
	put(t, dir, RuntimeFile, string(text), 0o600)
	if _, err := ReadRuntime(dir); err == nil || !strings.Contains(err.Error(), "not on this machine's loopback") {
		t.Errorf("ReadRuntime() with another machine for browsers = %v, want it refused", err)
	}
	write("http://[::1]:8080")
	if err := os.Chmod(filepath.Join(dir, RuntimeFile), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRuntime(dir); err == nil || !strings.Contains(err.Error(), "other users may read") {
		t.Errorf("ReadRuntime() of a file of everybody = %v, want it refused", err)
	}

	mounted := t.TempDir()
	if err := os.Mkdir(filepath.Join(mounted, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ClaimDataDir(mounted, false), CheckDataDir(mounted)); err != nil {
		t.Errorf("ClaimDataDir(an empty file system) = %v, want nil", err)
	}

	// The person accepts it, in another home.
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	if err := ClaimDataDir(dir, false); err == nil {
		t.Error("ClaimDataDir() in another home = nil, want it refused")
	}
	if err := errors.Join(ClaimDataDir(dir, true), ClaimDataDir(dir, false), CheckDataDir(dir)); err != nil {
		t.Errorf("ClaimDataDir(trusted), then without = %v, want nil", err)
	}
}

func TestMoveDataDir(t *testing.T) {
	homes(t)
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new", "tendril")
	if err := MoveDataDir(from, to); err == nil || !strings.Contains(err.Error(), "no data of trellis up") {
		t.Errorf("MoveDataDir(something else) = %v, want it refused", err)
	}
	put(t, from, "lock", "1\n", 0o600)
	put(t, from, "token", "tnd_x\n", 0o600)
	lock, err := dirlock.Take(from, dirlock.Self("trellis up"))
	if err != nil {
		t.Fatal(err)
	}
	if err := MoveDataDir(from, to); err == nil || !strings.Contains(err.Error(), "stop that first") {
		t.Errorf("MoveDataDir(one in use) = %v, want it refused", err)
	}
	lock.Release()
	if err := errors.Join(MoveDataDir(from, to), CheckDataDir(to)); err != nil {
		t.Errorf("MoveDataDir() = %v, want nil", err)
	}
	if text, err := os.ReadFile(filepath.Join(to, "token")); string(text) != "tnd_x\n" {
		t.Errorf("the token after the move = %q, %v, want it there", text, err)
	}
	put(t, t.TempDir(), "lock", "", 0o600)
	if err := MoveDataDir(to, to); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("MoveDataDir(onto another) = %v, want it refused", err)
	}
}
