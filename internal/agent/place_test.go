package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func placeOf(t *testing.T, root string) string {
	t.Helper()
	d := openTestDir(t, root)
	defer d.close()
	place, err := d.place()
	if err != nil {
		t.Fatal(err)
	}
	return place
}

// TestPlace: directories are told from each other, names of one are not, and
// the database takes all of them.
func TestPlace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	long := filepath.Join(dir, strings.Repeat("a", 200), strings.Repeat("b", 200))
	for _, path := range []string{"one", "two"} {
		for _, parent := range []string{dir, long} {
			if err := os.MkdirAll(filepath.Join(parent, path), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("one", link); err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	one := placeOf(t, filepath.Join(dir, "one"))
	if !strings.HasPrefix(one, host+":/") || !strings.HasSuffix(one, "/one") {
		t.Errorf("place = %q, want machine and directory", one)
	}
	if got := placeOf(t, link); got != one {
		t.Errorf("place by another name = %q, want %q", got, one)
	}
	seen := map[string]bool{}
	for _, root := range []string{filepath.Join(dir, "one"), filepath.Join(dir, "two"), filepath.Join(long, "one"), filepath.Join(long, "two")} {
		place := placeOf(t, root)
		if seen[place] || len(place) > maxPlace {
			t.Errorf("place of %s = %q (%d bytes), want another one of at most %d", root, place, len(place), maxPlace)
		}
		seen[place] = true
	}
}
