package scripts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// make clean removes what can be built again soon, keeps the rest, and says where
// that is and how to remove it.
func TestCleanSaysWhatItKeeps(t *testing.T) {
	t.Parallel()
	r := ourRepository(t, "Makefile")
	data, tools := filepath.Join(r.dir, "the data"), filepath.Join(r.dir, "the-tools")
	built := []string{"bin", "dist", ".cache"}
	for _, dir := range append([]string{tools, data}, built...) {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(r.dir, dir)
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	environ := []string{"TRELLIS_DATA_DIR=" + data, "TENDRIL_TOOLS=" + tools}
	said, complaints, code := r.run(environ, "make", "-s", "clean")
	if code != 0 || complaints != "" {
		t.Fatalf("make clean = %d: %s", code, complaints)
	}
	for _, want := range []string{
		"Removed bin, dist and .cache.", "Kept the data of trellis up: " + data + "\n  Remove it: rm -rf " + strings.ReplaceAll(data, " ", `\ `),
		"which all clones share: " + tools + "\n  Remove it: rm -rf " + tools,
	} {
		if !strings.Contains(said, want) {
			t.Errorf("make clean says no %q:\n%s", want, said)
		}
	}
	for _, dir := range built {
		if _, err := os.Stat(filepath.Join(r.dir, dir)); err == nil {
			t.Errorf("make clean kept %s", dir)
		}
	}
	for _, dir := range []string{data, tools} {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("make clean removed %s", dir)
		}
	}
}
