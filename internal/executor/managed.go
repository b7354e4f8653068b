package executor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"filippo.io/age"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/managedstate"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/spool"
	"github.com/tendril-run/tendril/internal/terraform"
)

// managedState is the workspace's state while a run has it: the engine reads and
// writes it by HTTP, and what is written is left for the agent, sealed. The
// database need not be there for that.
type managedState struct {
	*managedstate.Server
	log       *spool.Writer
	recipient age.Recipient
	slots     [2]*os.File
	// version is the newest that was told of, or was there before; the next one goes
	// into the slot that the newest is not in. So there is always a whole one.
	version int64
	slot    int
	stored  int64    // what was there when the run began
	told    sync.Map // what refused has told of
}

// serveState starts the backend with the state that the agent has handed down.
func serveState(j job.Job, log *spool.Writer) (*managedState, error) {
	told := j.ManagedState
	if told == nil {
		return nil, errors.New("this run needs a managed state, and its agent has handed none down")
	}
	recipient, err := seal.ParseRecipient(j.ClusterKey)
	if err != nil {
		return nil, fmt.Errorf("the cluster's key: %w", err)
	}
	in, slots := stateFiles()
	state, err := readState(in)
	if err := errors.Join(err, in.Close()); err != nil { // closed, it takes no memory any more
		return nil, fmt.Errorf("read the state: %w", err)
	}
	m := &managedState{log: log, recipient: recipient, slots: slots, version: told.Version, stored: told.Version, slot: 1}
	m.Server, err = managedstate.Serve(managedstate.Options{
		State: state, Save: m.save, TooLarge: m.tooLarge, Refused: m.refused,
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (m *managedState) tooLarge(limit int64) {
	m.log.System("The state is larger than the %d bytes that a managed one may have, so it is not stored: split the workspace, or keep its state in another backend.", limit)
}

// refused tells of a process that tried to change the state behind the engine's
// back: of each attempt of a kind once, for it may be a loop.
func (m *managedState) refused(what string) {
	if _, told := m.told.LoadOrStore(what, true); !told {
		m.log.System("Refused: a process that this run's template has started tried to %s. The state is as the engine left it.", what)
	}
}

// grants is terraform.Options.State for a managed state, nil for another.
func (m *managedState) grants() func(terraform.StateUse) (map[string]string, func()) {
	if m == nil {
		return nil
	}
	access := map[terraform.StateUse]managedstate.Access{
		terraform.ReadsState: managedstate.Read, terraform.LocksState: managedstate.Lock, terraform.WritesState: managedstate.Write,
	}
	return func(use terraform.StateUse) (map[string]string, func()) {
		grant := m.Grant(access[use])
		m.log.Mask(grant.Password())
		return grant.Environ(), grant.End
	}
}

// save leaves a state for the agent. When it returns both the state and the word
// of it are on the disk: the engine may forget it.
func (m *managedState) save(state []byte, header managedstate.Header) error {
	err := m.write(state, header)
	if err != nil {
		m.log.System("The state, serial %d, could not be written to this agent's disk: %v", header.Serial, err)
	}
	return err
}

func (m *managedState) write(state []byte, header managedstate.Header) error {
	sealed, err := seal.To(m.recipient, state)
	if err != nil {
		return err
	}
	slot := 1 - m.slot
	if err := fill(m.slots[slot], sealed); err != nil {
		return err
	}
	sum := sha256.Sum256(sealed)
	// A number is given once: what fails now may be in the spool all the same.
	m.version++
	err = m.log.Update(provision.Report{Status: provision.Processing, Detail: provision.Detail{StateWrite: &provision.StateWrite{
		Number: m.version, Slot: slot, Digest: hex.EncodeToString(sum[:]), Serial: header.Serial, Lineage: header.Lineage,
	}}})
	if err := errors.Join(err, m.log.Sync()); err != nil {
		return err
	}
	m.slot = slot
	return nil
}

// readState reads the state that the agent has handed down.
func readState(in *os.File) ([]byte, error) {
	info, err := in.Stat()
	if err != nil {
		return nil, err
	}
	state := make([]byte, min(info.Size(), managedstate.MaxState))
	_, err = io.ReadFull(io.NewSectionReader(in, 0, int64(len(state))), state)
	return state, err
}

// fill makes content all that is in a file. What cannot be written in full takes
// no room.
func fill(file *os.File, content []byte) error {
	err := file.Truncate(0)
	if err == nil {
		_, err = file.WriteAt(content, 0)
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		_ = file.Truncate(0) // the error at hand tells more
	}
	return err
}

// stateFiles are those that the agent has handed down.
func stateFiles() (in *os.File, out [2]*os.File) {
	return os.NewFile(job.StateInFD, "state"), [2]*os.File{os.NewFile(job.StateOutA, "state A"), os.NewFile(job.StateOutB, "state B")}
}
