package executor

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/terraform"
)

// initServes is how long the work of an init serves later runs. It must be well
// below the time after which unused provider packages are removed.
const initServes = 7 * 24 * time.Hour

// initialised is what a run knows of an init's work in the engine's data
// directory. A workspace has a note of it, so that a run of the same does not do
// it again: an init costs a process, and what the backend and the providers make
// of it. Without a note, or with that of something else, init runs.
//
// A run takes the note away when it begins and puts it back when it has
// succeeded, so after a failure or a kill everything is done anew. Templates can
// write where it lies, so it is authenticated by a key that they do not have.
type initialised struct {
	path string // of the note
	data string // the engine's data directory
	key  []byte
	// of is what the data directory is to be the work of, "" for what init must
	// do each time.
	of string
	// made is what init left in the data directory, when it began.
	made  string
	since time.Time
}

// note is the file.
type note struct {
	Since time.Time `json:"since"`
	Proof []byte    `json:"proof"`
}

// Bounds on what is read, in bytes.
const (
	maxMade = 4 << 20
	maxNote = 1 << 10
)

// whatInitMade is a digest of what init writes into the data directory and later
// commands believe: the backend's record, the selected workspace, the modules. A
// template that runs the engine itself changes them, for its commands inherit
// TF_DATA_DIR. "" if it cannot be told.
func whatInitMade(data string) string {
	sum := sha256.New()
	for _, name := range []string{backendRecord, selectedWorkspace, filepath.Join(modulesName, "modules.json")} {
		text, err := readBounded(filepath.Join(data, name), maxMade)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return ""
		}
		_, _ = fmt.Fprintf(sum, "%s %t %d\n%s", name, err == nil, len(text), text) // a hash takes everything
	}
	return string(sum.Sum(nil))
}

// readBounded reads a file where a template can write: it follows no link and
// waits for no pipe.
func readBounded(path string, limit int64) ([]byte, error) {
	file, err := terraform.OpenStateFile(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return text, err
}

// proof is what the note must say.
func (i *initialised) proof() []byte {
	mac := hmac.New(sha256.New, i.key)
	_, _ = fmt.Fprintf(mac, "%d %d\n%s%s", i.since.UnixNano(), len(i.of), i.of, i.made) // a hash takes everything
	return mac.Sum(nil)
}

// take reports whether the work is there, and removes the note.
func (i *initialised) take(now time.Time) bool {
	text, err := readBounded(i.path, maxNote)
	if removed := isolation.RemoveAll(i.path); err != nil || removed != nil || i.of == "" {
		return false
	}
	var n note
	if json.Unmarshal(text, &n) != nil {
		return false
	}
	i.since, i.made = n.Since, whatInitMade(i.data)
	age := now.Sub(i.since)
	return i.made != "" && hmac.Equal(n.Proof, i.proof()) && age >= 0 && age < initServes
}

// put writes the note. That it cannot be written costs the next run an init. Its
// time stays that of the init, which is when packages were last marked as used.
func (i *initialised) put() {
	if i.of == "" || i.made == "" {
		return
	}
	text, err := json.Marshal(note{Since: i.since, Proof: i.proof()})
	if err != nil || isolation.RemoveAll(i.path) != nil {
		return
	}
	file, err := os.OpenFile(i.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return
	}
	_, err = file.Write(text)
	if errors.Join(err, file.Close()) != nil {
		_ = os.Remove(i.path)
	}
}

// intact reports whether the data directory is as init left it.
func (i *initialised) intact() bool { return i.made != "" && i.made == whatInitMade(i.data) }
