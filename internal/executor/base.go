package executor

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tendril-run/tendril/internal/terraform"
)

// baseName is the file beside the kept states that says from which state the
// last apply began. It is there while an apply goes on, and for as long after
// one as its state is not stored.
const baseName = ".base"

// base is what that file holds. Its fields are not those of a state, so that it
// is never taken for one, see markLost.
type base struct {
	Note  string                `json:"note"`
	State terraform.StateHeader `json:"apply_began_from"`
}

// baseNote is for the person who finds the file under a kept state's name.
const baseNote = "This is no state. An apply began from the state named here, and the state it came to could be neither stored nor kept. " +
	"Compare what is stored (terraform state pull) with what exists, import what is missing, then remove this file."

func (k keptStates) basePath() string { return filepath.Join(k.dir, baseName) }

// begin notes, before an apply, which state it begins from.
func (k keptStates) begin(from terraform.StateHeader) error {
	content, err := json.Marshal(base{Note: baseNote, State: from})
	if err != nil {
		return err
	}
	return ballast{k.basePath() + ".new"}.become(append(content, '\n'), k.basePath())
}

// began is the state that the apply began from whose state is kept. Where that
// is not known it has no lineage, and terraform.Follow changes nothing.
func (k keptStates) began() terraform.StateHeader {
	var b base
	content, err := terraform.ReadStateFile(k.basePath())
	if err == nil {
		err = json.Unmarshal(content, &b)
	}
	if err != nil {
		return terraform.StateHeader{}
	}
	return b.State
}

// settled forgets what the last apply began from, if none of its states is kept.
func (k keptStates) settled() {
	if paths, err := k.list(); err == nil && len(paths) == 0 {
		_ = os.Remove(k.basePath()) // the next run tries again
	}
}

// markLost has the workspace held though there is no state to keep, until a
// person removes the file. It takes no room on the disk: what the apply began
// from gets a kept state's name.
func (k keptStates) markLost() error {
	to, err := k.next()
	if err != nil {
		return err
	}
	err = os.Rename(k.basePath(), to)
	if errors.Is(err, fs.ErrNotExist) { // the template has removed it
		return k.write([]byte(baseNote+"\n"), ballast{k.basePath() + ".new"})
	}
	if err != nil {
		return err
	}
	return syncPath(k.dir)
}
