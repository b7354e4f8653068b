package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func hostIdentityOf(t *testing.T, root string) string {
	t.Helper()
	d := openTestDir(t, root)
	defer d.close()
	place, err := hostIdentity(d)
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
	one := hostIdentityOf(t, filepath.Join(dir, "one"))
	if !strings.HasPrefix(one, host+":/") || !strings.HasSuffix(one, "/one") {
		t.Errorf("place = %q, want machine and directory", one)
	}
	if got := hostIdentityOf(t, link); got != one {
		t.Errorf("place by another name = %q, want %q", got, one)
	}
	seen := map[string]bool{}
	for _, root := range []string{filepath.Join(dir, "one"), filepath.Join(dir, "two"), filepath.Join(long, "one"), filepath.Join(long, "two")} {
		place := hostIdentityOf(t, root)
		if seen[place] || len(place) > maxHostIdentity {
			t.Errorf("place of %s = %q (%d bytes), want another one of at most %d", root, place, len(place), maxHostIdentity)
		}
		seen[place] = true
	}
}

// TestPlaceOfAnotherContainer: who holds the very lock of the last agent is where
// that was, whatever the machine is called now. A copy is not, nor who comes after
// a boot, nor who finds in the file what the database would not take.
func TestPlaceOfAnotherContainer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := filepath.Join(dir, "data")
	own := hostIdentityOf(t, root)
	file := filepath.Join(root, "place")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lock, rest, _ := strings.Cut(string(content), "\n")
	if rest != own+"\n" {
		t.Fatalf("the file says %q, want %q", rest, own)
	}
	const last = "3f2a9c:/var/lib/tendril"
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(file, lock+"\n"+last+"\n")
	for range 2 {
		if got := hostIdentityOf(t, root); got != last {
			t.Errorf("place = %q, want %q as before", got, last)
		}
	}

	duplicate := filepath.Join(dir, "copy")
	if err := os.CopyFS(duplicate, os.DirFS(root)); err != nil {
		t.Fatal(err)
	}
	if got := hostIdentityOf(t, duplicate); got == last || !strings.HasSuffix(got, "/copy") {
		t.Errorf("place of a copy = %q, want its own", got)
	}

	_, numbers, _ := strings.Cut(lock, " ")
	for what, text := range map[string]string{
		"another boot":    "00000000-0000-4000-8000-000000000000 " + numbers + "\n" + last + "\n",
		"no place":        lock + "\n",
		"no host":         lock + "\n:/data\n",
		"no directory":    lock + "\nhost\n",
		"two lines":       lock + "\nhost:/a\nb\n",
		"a colour":        lock + "\nhost:/\x1b[31m\n",
		"no UTF-8":        lock + "\nhost:/\xff\n",
		"far too much":    fmt.Sprintf("%s\nhost:/%s\n", lock, strings.Repeat("a", maxHostIdentity)),
		"nothing":         "",
		"half of a place": lock[:len(lock)/2],
	} {
		write(file, text)
		if got := hostIdentityOf(t, root); got != own {
			t.Errorf("place after a file with %s = %q, want %q", what, got, own)
		}
		if content, err := os.ReadFile(file); err != nil || string(content) != lock+"\n"+own+"\n" {
			t.Errorf("after a file with %s it says %q, %v", what, content, err)
		}
	}
}
