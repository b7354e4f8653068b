package executor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/terraform"
)

// keptStates are the states of a workspace that an engine could not store, in
// the directory dir: errored.tfstate, errored-2.tfstate and so on, in the order
// in which they were kept. While there is one, nothing else happens on the
// workspace. A second one comes only from a run that was killed between two
// steps; none is overwritten by another. What is no whole state is never
// stored, and stays until a person has removed it.
type keptStates struct{ dir string }

const (
	erroredStem = "errored"
	stateSuffix = ".tfstate"
	// erroredState is how the engine names a state it could not store.
	erroredState = job.UnsavedState
)

// list returns the paths of the kept states, the oldest first.
func (k keptStates) list() ([]string, error) {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return nil, fmt.Errorf("look for states that are not stored yet: %w", err)
	}
	var numbers []int
	for _, entry := range entries {
		if n := keptNumber(entry.Name()); n > 0 && entry.Type().IsRegular() {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	paths := make([]string, len(numbers))
	for i, n := range numbers {
		paths[i] = k.path(n)
	}
	return paths, nil
}

// keptNumber is the place of a kept state by its file's name; 0 for any other file.
func keptNumber(name string) int {
	if name == erroredState {
		return 1
	}
	number, ok := strings.CutPrefix(strings.TrimSuffix(name, stateSuffix), erroredStem+"-")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 2 || name != keptName(n) {
		return 0
	}
	return n
}

func keptName(n int) string {
	if n == 1 {
		return erroredState
	}
	return fmt.Sprintf("%s-%d%s", erroredStem, n, stateSuffix)
}

func (k keptStates) path(n int) string { return filepath.Join(k.dir, keptName(n)) }

// next is the path for one more.
func (k keptStates) next() (string, error) {
	paths, err := k.list()
	if err != nil || len(paths) == 0 {
		return k.path(1), err
	}
	return k.path(keptNumber(filepath.Base(paths[len(paths)-1])) + 1), nil
}

// take moves a file here. It is gone from where it was only when it is on the
// disk here.
func (k keptStates) take(from string) error {
	to, err := k.next()
	if err != nil {
		return err
	}
	file, err := terraform.OpenStateFile(from)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := durable.Rename(from, to); !errors.Is(err, unix.EXDEV) {
		return err
	}
	content, err := terraform.ReadStateFile(from)
	if err != nil {
		return err
	}
	if err := k.write(content, reservedSpace{filepath.Join(k.dir, ".moving")}); err != nil {
		return err
	}
	return os.Remove(from)
}

// write keeps a state in the room that was reserved for it.
func (k keptStates) write(state []byte, room reservedSpace) error {
	to, err := k.next()
	if err != nil {
		return err
	}
	return room.become(state, to)
}

// remove forgets states that are stored, in that order.
func (k keptStates) remove(paths ...string) error {
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return durable.Sync(k.dir)
}

// newestOf picks, in the order of paths, the states that have to be stored, and
// with each those that it contains: as a workspace's next run begins from what
// is stored, a state of a lineage has all that those with lower serials have.
// To store those first would not work either: an empty backend gives the first
// state a lineage of its own.
func newestOf(paths []string) iter.Seq2[string, []string] {
	headers := make([]terraform.StateHeader, len(paths))
	for i, path := range paths {
		headers[i], _ = readHeader(path) // each is whole, see undecided
	}
	older := func(a, b int) bool {
		return headers[a].Lineage != "" && headers[a].Lineage == headers[b].Lineage && headers[a].Serial < headers[b].Serial
	}
	return func(yield func(string, []string) bool) {
		for i, path := range paths {
			var contained []string
			newest := true
			for j := range paths {
				newest = newest && !older(i, j)
				if older(j, i) {
					contained = append(contained, paths[j])
				}
			}
			if newest && !yield(path, contained) {
				return
			}
		}
	}
}

// isState reports whether a file holds a whole state.
func isState(path string) bool {
	_, err := readHeader(path)
	return err == nil
}

func readHeader(path string) (terraform.StateHeader, error) {
	content, err := terraform.ReadStateFile(path)
	if err != nil {
		return terraform.StateHeader{}, err
	}
	return terraform.ReadStateHeader(content)
}

// applyBaseName is the file beside the kept states that says from which state the
// last apply began. It is there while an apply goes on, and for as long after
// one as its state is not stored.
const applyBaseName = ".base"

// applyBase is what that file holds. Its fields are not those of a state, so that it
// is never taken for one, see markLost.
type applyBase struct {
	Note  string                `json:"note"`
	State terraform.StateHeader `json:"apply_began_from"`
}

// applyBaseNote is for the person who finds the file under a kept state's name.
const applyBaseNote = "This is no state. An apply began from the state named here, and the state it came to could be neither stored nor kept. " +
	"Compare what is stored (terraform state pull) with what exists, import what is missing, then remove this file."

func (k keptStates) applyBasePath() string { return filepath.Join(k.dir, applyBaseName) }

// begin notes, before an apply, which state it begins from.
func (k keptStates) begin(from terraform.StateHeader) error {
	content, err := json.Marshal(applyBase{Note: applyBaseNote, State: from})
	if err != nil {
		return err
	}
	return reservedSpace{k.applyBasePath() + ".new"}.become(append(content, '\n'), k.applyBasePath())
}

// began is the state that the apply began from whose state is kept. Where that
// is not known it has no lineage, and terraform.Follow changes nothing.
func (k keptStates) began() terraform.StateHeader {
	var b applyBase
	content, err := terraform.ReadStateFile(k.applyBasePath())
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
		_ = os.Remove(k.applyBasePath()) // the next run tries again
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
	err = durable.Rename(k.applyBasePath(), to)
	if errors.Is(err, fs.ErrNotExist) { // the template has removed it
		return k.write([]byte(applyBaseNote+"\n"), reservedSpace{k.applyBasePath() + ".new"})
	}
	return err
}
