package machines

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tfvars"
	"github.com/tendril-run/tendril/provisioner"
)

// Version is the version of the document. Terraform's states have another one, so neither
// program takes the other's.
const Version = 1001

// State is what is recorded of a workspace's machines.
type State struct {
	Version int    `json:"version"`
	Serial  uint64 `json:"serial"`
	Lineage string `json:"lineage"`
	// Machines are in the order of their names.
	Machines []Machine `json:"machines"`
	// Actions are what a run can do to one of them alone.
	Actions []provision.MachineAction     `json:"actions,omitempty"`
	Outputs map[string]provisioner.Output `json:"outputs,omitempty"`
	// Work is the digest of the instructions that a person has carried out; "" for none.
	Work string `json:"work,omitempty"`
	// Program is what the provisioner itself wants to know the next time.
	Program json.RawMessage `json:"program,omitempty"`
	// Run is the run whose apply has written this, as far as it can be taken up again.
	Run *Run `json:"run,omitempty"`
}

// Run is an apply that another agent may take up.
type Run struct {
	// ID is the run's.
	ID string `json:"id"`
	// Done are the ids of the machines that it is done with, well or not.
	Done []string `json:"done,omitempty"`
}

// Begun reports whether the apply of this run has begun, and nothing else was done since.
func (s *State) Begun(run string) bool { return s.Run != nil && s.Run.ID == run }

// Finish notes that the run is done with a machine.
func (r *Run) Finish(machine string) {
	if r != nil && !slices.Contains(r.Done, machine) {
		r.Done = append(r.Done, machine)
	}
}

// Machine is one machine, as it was last heard of.
type Machine struct {
	provisioner.Machine
	// Wanted is what the template wanted when the machine was made.
	Wanted provisioner.Wanted `json:"wanted"`
	// Config is what a script got beside that, and gets again to destroy the machine.
	Config json.RawMessage `json:"config,omitempty"`
	// Hidden are the settings whose values nobody may see, such as static.password.
	Hidden []string `json:"hidden,omitempty"`
	// Unfinished says that commands run after its making, and have not all ended well.
	Unfinished bool `json:"unfinished,omitempty"`
	// Withheld is the end of what its maker wrote for people when it gave no answer. It may
	// have a password that nobody knows of, so it stands here alone.
	Withheld string `json:"withheld,omitempty"`
	// SSH are the keys by which commands run in the machine while it is made; nil: none. They are
	// here before the machine exists, so that a run after a crash has them, and are forgotten
	// with the intent.
	SSH *SSHKeys `json:"ssh,omitempty"`
	// Importing says that the intent takes over a machine that exists: nothing is made for it, and
	// nothing of the template's runs in it.
	Importing bool `json:"importing,omitempty"`
	// Rescued says that it was to boot a rescue system, and has not left that since.
	Rescued bool `json:"rescued,omitempty"`
	// Intent is what was about to be done, if it isn't known what became of it.
	Intent *provisioner.Intent `json:"intent,omitempty"`
}

// SSHKeys are private keys in PEM: the one that signs in, and the one that the machine shows.
type SSHKeys struct {
	Login string `json:"login"`
	Host  string `json:"host"`
}

// ErrForeign is the error of a state that another kind of provisioner has left.
var ErrForeign = errors.New("it is not a record of machines, so another kind of template has made it")

// Read reads a stored state; none, of no bytes, is an empty one with a lineage of its own.
func Read(stored []byte) (*State, error) {
	if len(bytes.TrimSpace(stored)) == 0 {
		return &State{Version: Version, Lineage: uuid.NewString()}, nil
	}
	var s State
	if err := json.Unmarshal(stored, &s); err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	if s.Version != Version {
		return nil, ErrForeign
	}
	for _, m := range s.Machines {
		if m.ID == "" || m.Wanted.ID != m.ID || m.Wanted.Name == "" {
			return nil, errors.New("read the state: a machine in it has no name, or another id than it was wanted with")
		}
	}
	return &s, nil
}

// Next is the document to be stored, under the next serial.
func (s *State) Next() ([]byte, error) {
	s.Serial++
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("write the state: %w", err)
	}
	return text, nil
}

// Find returns the machine of an id; nil if there is none.
func (s *State) Find(id string) *Machine {
	return s.find(func(m Machine) bool { return m.ID == id })
}

// Named returns the machine of a name; nil if there is none.
func (s *State) Named(name string) *Machine {
	return s.find(func(m Machine) bool { return m.Wanted.Name == name })
}

func (s *State) find(is func(Machine) bool) *Machine {
	if i := slices.IndexFunc(s.Machines, is); i >= 0 {
		return &s.Machines[i]
	}
	return nil
}

// Intend records what is about to be done to a machine that is, or will be, as wanted.
func (s *State) Intend(wanted provisioner.Wanted, intent provisioner.Intent) {
	m := s.Find(wanted.ID)
	if m == nil {
		s.Machines = append(s.Machines, Machine{Wanted: wanted, Machine: provisioner.Machine{
			ID: wanted.ID, Name: wanted.Name, Status: provisioner.StatusCreating,
		}})
		slices.SortFunc(s.Machines, byName)
		m = s.Find(wanted.ID)
	}
	if intent.Action != provisioner.ActionDestroy {
		m.Wanted = wanted
		m.Status, m.Unfinished = provisioner.StatusCreating, false
		m.LeaveRescue()
	}
	m.Intent, m.Withheld = &intent, ""
}

// Settle records what a machine is now, which ends its intent, unless it is still being
// made or nobody knows. One that is gone is forgotten, and one that runs and is unfinished
// has failed.
func (s *State) Settle(now provisioner.Machine) {
	m := s.Find(now.ID)
	switch {
	case m == nil:
	case now.Status == provisioner.StatusGone:
		s.Machines = slices.DeleteFunc(s.Machines, func(m Machine) bool { return m.ID == now.ID })
	case now.Status == provisioner.StatusUnknown: // what was known is what there is to look for
		m.Status = now.Status
	default:
		now.Name = m.Wanted.Name
		now.ExternalID = cmp.Or(now.ExternalID, m.ExternalID)
		switch password, rescued := m.Credentials[provisioner.RescuePassword]; {
		case now.Credentials == nil:
			now.Credentials = m.Credentials
		case rescued && now.Credentials[provisioner.RescuePassword] == "":
			now.Credentials = maps.Clone(now.Credentials)
			now.Credentials[provisioner.RescuePassword] = password
		}
		if m.Unfinished && now.Status == provisioner.StatusRunning {
			now.Status = provisioner.StatusFailed
		}
		if m.Machine = now; now.Status != provisioner.StatusCreating {
			m.Intent, m.SSH, m.Importing = nil, nil, false
		}
	}
}

// LeaveRescue records that the machine is no longer in rescue, whose password is forgotten.
func (m *Machine) LeaveRescue() {
	m.Rescued = false
	if _, there := m.Credentials[provisioner.RescuePassword]; there {
		m.Credentials = maps.Clone(m.Credentials)
		delete(m.Credentials, provisioner.RescuePassword)
	}
}

// Restore puts a machine back as it was; nil: it was not there.
func (s *State) Restore(id string, was *Machine) {
	s.Machines = slices.DeleteFunc(s.Machines, func(m Machine) bool { return m.ID == id })
	if was != nil {
		s.Machines = append(s.Machines, *was)
		slices.SortFunc(s.Machines, byName)
	}
}

func byName(a, b Machine) int { return cmp.Compare(a.Wanted.Name, b.Wanted.Name) }

// AllCredentials are the machine's, and what its maker wrote that was withheld from the log,
// which may have one.
func (m *Machine) AllCredentials() map[string]string {
	if m.Withheld == "" {
		return m.Credentials
	}
	all := map[string]string{"withheld_log": m.Withheld}
	maps.Copy(all, m.Credentials)
	return all
}

// InDoubt reports whether the machine may or may not exist, or is half done.
func (m *Machine) InDoubt() bool { return m.Intent != nil || m.Status == provisioner.StatusUnknown }

// Secrets are the values that nobody may see: credentials but for users' names, private keys,
// hidden settings and what is in sensitive outputs.
func (s *State) Secrets() []string {
	var secrets []string
	add := func(text string) { secrets = append(secrets, text) }
	for _, m := range s.Machines {
		secrets = append(secrets, m.Secrets()...)
		if m.SSH != nil {
			secrets = append(secrets, m.SSH.Login, m.SSH.Host)
		}
		hidden := map[string]bool{}
		for _, name := range m.Hidden {
			hidden[name] = true
		}
		for name, value := range attributes(m.Wanted, hidden) {
			if hides(hidden, name) {
				tfvars.EachRawLeaf(value, add)
			}
		}
	}
	for _, output := range s.Outputs {
		if output.Sensitive {
			tfvars.EachRawLeaf(output.Value, add)
		}
	}
	return secrets
}
