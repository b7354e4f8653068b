package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
)

func TestClearLeavesWhatIsNeeded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		state string // what errored.tfstate holds; none if empty
		left  []string
	}{
		"nothing unsaved":         {"", []string{"data", "providers"}},
		"an empty file":           {"empty", []string{"data", "providers"}},
		"a state not stored yet":  {`{"version": 4}`, []string{"data", "providers", job.SourceName}},
		"half of one, or garbage": {`{"vers`, []string{"data", "providers", job.SourceName}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := openDataDir(t.TempDir(), "one")
			if err != nil {
				t.Fatal(err)
			}
			defer d.close()
			workspace := uuid.NewString()
			for _, dir := range []string{"data", "providers", secretsName, job.SourceName + "/template", job.TempName} {
				if err := os.MkdirAll(d.path("work", workspace, dir), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			reservedSpace := d.path("state", workspace, job.ReservedName)
			if err := errors.Join(os.MkdirAll(filepath.Dir(reservedSpace), 0o700), os.WriteFile(reservedSpace, []byte("room"), 0o600)); err != nil {
				t.Fatal(err)
			}
			content := test.state
			if content == "empty" {
				content = ""
			}
			if test.state != "" {
				if err := os.WriteFile(d.path("work", workspace, job.SourceName, "template", job.UnsavedState), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := (workspaceDirs{dir: d}).clear(workspace); err != nil {
				t.Errorf("clear() = %v", err)
			}
			if _, err := os.Lstat(reservedSpace); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Lstat(the room that the run reserved) error = %v, want it given back", err)
			}
			left, err := filepath.Glob(d.path("work", workspace, "*"))
			if err != nil {
				t.Fatal(err)
			}
			for i := range left {
				left[i] = filepath.Base(left[i])
			}
			if !slices.Equal(left, test.left) {
				t.Errorf("left = %v, want %v", left, test.left)
			}
		})
	}
}
