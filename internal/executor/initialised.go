package executor

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/terraform"
)

// initServes is how long the work of an init serves later runs. It must be well
// below the time after which unused provider packages are removed.
const initServes = 7 * 24 * time.Hour

// initialised is the note of a workspace that says of what the engine's data
// directory is the work, so that a run of the same does not do it again: an init
// costs a process, and what the backend and the providers make of it. Without a
// note, or with that of something else, init runs.
//
// A run takes the note away when it begins and puts it back when it has
// succeeded, so after a failure or a kill everything is done anew.
type initialised struct {
	path string
	// of is what the data directory is to be the work of, "" for what init must
	// do each time.
	of string
}

// mark is what init's work depends on. A template's commit stands for its files.
func (t *terraformRun) mark(engine terraform.Engine) string {
	text, err := json.Marshal([]any{
		t.run.commit, t.dir, engine, t.backend.config, t.backend.local, t.run.job.Settings.State, t.run.snapshot.TemplateSource,
	})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text) // a backend's configuration may be secret
	return hex.EncodeToString(sum[:])
}

// take reports whether the work is there, and removes the note.
func (i initialised) take(now time.Time) bool {
	info, err := os.Lstat(i.path)
	if err != nil {
		return false
	}
	text, err := os.ReadFile(i.path)
	age := now.Sub(info.ModTime())
	return errors.Join(err, os.Remove(i.path)) == nil && i.of != "" && string(text) == i.of && age >= 0 && age < initServes
}

// put writes the note. That it cannot be written costs the next run an init.
func (i initialised) put() {
	if i.of != "" {
		_ = os.WriteFile(i.path, []byte(i.of), 0o600)
	}
}

// repeatable reports whether an init that began with the given lock file would
// come to the same if it were run again: it had to change nothing there, and
// each module is a directory of the template. Another module's source may have
// something else by then, and a template without a lock file takes the newest
// providers.
func (t *terraformRun) repeatable(before providers.Lock) bool {
	after, err := providers.ReadLock(t.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) || !reflect.DeepEqual(before, after) {
		return false
	}
	text, err := os.ReadFile(filepath.Join(t.run.files.modules(), "modules.json"))
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	var manifest struct {
		Modules []struct{ Source string }
	}
	if err != nil || json.Unmarshal(text, &manifest) != nil {
		return false
	}
	for _, m := range manifest.Modules {
		if m.Source != "" && !strings.HasPrefix(m.Source, "./") && !strings.HasPrefix(m.Source, "../") {
			return false
		}
	}
	return true
}
