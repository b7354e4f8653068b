package executor

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func newNote(t *testing.T) *initialised {
	t.Helper()
	data := t.TempDir()
	for name, content := range map[string]string{backendRecord: "{}", modulesName + "/modules.json": "{}"} {
		path := filepath.Join(data, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &initialised{
		path: filepath.Join(t.TempDir(), "note"), data: data, key: []byte("key"), of: "this", made: whatInitMade(data), since: time.Now(),
	}
}

// The note keeps the time of the init, however often it serves: packages are
// marked as used by inits only, and removed when they were not for long.
func TestNoteAges(t *testing.T) {
	t.Parallel()
	n := newNote(t)
	began := n.since
	n.put()
	for _, day := range []int{1, 3, 6} {
		if !n.take(began.AddDate(0, 0, day)) {
			t.Fatalf("take() after %d days = false, want true", day)
		}
		n.put()
	}
	if n.take(began.AddDate(0, 0, 8)) {
		t.Error("take() after 8 days = true, want false: it was used in between, but init was not run")
	}
	if _, err := os.Lstat(n.path); !os.IsNotExist(err) {
		t.Errorf("Lstat(the note) after take() error = %v, want it gone", err)
	}
}

func TestNoteIsNotBelieved(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*testing.T, *initialised){
		"clock stepped back": func(_ *testing.T, n *initialised) { n.since = n.since.Add(time.Hour); n.put() },
		"another key":        func(_ *testing.T, n *initialised) { n.key = []byte("other") },
		"of something else":  func(_ *testing.T, n *initialised) { n.of = "that" },
		"of nothing":         func(_ *testing.T, n *initialised) { n.of = "" },
		"no note":            func(t *testing.T, n *initialised) { replace(t, n.path, nil) },
		"empty": func(t *testing.T, n *initialised) {
			replace(t, n.path, func(p string) error { return os.WriteFile(p, nil, 0o600) })
		},
		"a directory": func(t *testing.T, n *initialised) {
			replace(t, n.path, func(p string) error { return os.MkdirAll(p+"/x", 0o700) })
		},
		"a link to zeros": func(t *testing.T, n *initialised) {
			replace(t, n.path, func(p string) error { return os.Symlink("/dev/zero", p) })
		},
		"large": func(t *testing.T, n *initialised) {
			replace(t, n.path, func(p string) error { return os.WriteFile(p, make([]byte, maxNote+1), 0o600) })
		},
		"record is a link": func(t *testing.T, n *initialised) {
			replace(t, filepath.Join(n.data, backendRecord), func(p string) error { return os.Symlink("/dev/zero", p) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNote(t)
			n.put()
			spoil(t, n)
			if n.take(time.Now()) {
				t.Error("take() = true, want false")
			}
			if _, err := os.Lstat(n.path); !os.IsNotExist(err) {
				t.Errorf("Lstat(the note) after take() error = %v, want it gone", err)
			}
		})
	}
}

// replace puts something else in a file's place.
func replace(t *testing.T, path string, by func(string) error) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if by == nil {
		return
	}
	if err := by(path); err != nil {
		t.Fatal(err)
	}
}
