package machines

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/provisioner"
)

// Listed are the machines as people see them. One whose destruction was interrupted is
// unknown, whatever was last heard of it; one that is being made is creating.
func (s *State) Listed() []provision.Machine {
	listed := make([]provision.Machine, 0, len(s.Machines))
	for _, m := range s.Machines {
		status := provision.MachineStatus(m.Status)
		if m.Intent != nil && m.Status != provisioner.StatusCreating {
			status = provision.MachineUnknown
		}
		actions := slices.Clone(s.Actions)
		if len(m.Credentials) > 0 {
			actions = append(actions, provision.MachineReveals)
		}
		if m.Rescued {
			actions = append(actions, provision.MachineUnrescues)
		}
		listed = append(listed, provision.Machine{
			Name: m.Wanted.Name, Status: status, Address: Address(m.Wanted.Name), Pool: m.Wanted.Pool, Node: m.Node,
			ExternalID: m.ExternalID, IPAddresses: reachable(m.Address, m.Addresses), SSHPort: m.SSHPort, Image: m.Wanted.Image,
			Cores: m.Wanted.Cores, MemoryMiB: m.Wanted.Memory, DiskGiB: m.Wanted.Disk, Labels: m.Wanted.Labels, Actions: actions,
		})
	}
	return listed
}

// HandedOut are all machines with what signs in to them; none where nothing signs in to any.
func (s *State) HandedOut() (all []provision.HandedOut) {
	known := false
	for i, m := range s.Listed() {
		credentials := s.Machines[i].AllCredentials()
		known = known || len(credentials) > 0
		all = append(all, provision.HandOut(m, credentials))
	}
	if !known {
		return nil
	}
	return all
}

// reachable are a machine's IP addresses, the one to reach it at first.
func reachable(address string, others []string) (addresses []string) {
	for _, one := range append([]string{address}, others...) {
		if one != "" && !slices.Contains(addresses, one) {
			addresses = append(addresses, one)
		}
	}
	return addresses
}

// Output is the name of the output in which a Terraform template says which machines it has
// made: a map of objects, by the machines' names.
const Output = "machines"

// FromOutput reads the value of the output Output. Of a machine with a wrong attribute
// nothing but its name is believed; what is wrong is said.
func FromOutput(value json.RawMessage) (listed []provision.Machine, wrong []error) {
	listed = []provision.Machine{}
	var all map[string]json.RawMessage
	if json.Unmarshal(value, &all) != nil {
		return nil, []error{errors.New("it is not a map of objects")}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if length := utf8.RuneCountInString(name); length == 0 || length > provision.MaxMachineName {
			wrong = append(wrong, fmt.Errorf("the name %.50q has %d characters, not 1 to %d, so that machine is not listed", name, length, provision.MaxMachineName))
			continue
		}
		m, err := fromObject(name, all[name])
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%q is listed without what is said of it: %w", name, err))
			m = provision.Machine{Name: name, Status: provision.MachineUnknown}
		}
		listed = append(listed, m)
	}
	return listed, wrong
}

// fromObject reads what is said of one machine. Everything may be left out or null, and what
// else the object has is the template's own.
func fromObject(name string, object json.RawMessage) (m provision.Machine, err error) {
	var members map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil || members == nil {
		return m, errors.New("it is not an object")
	}
	m.Name, m.Status = name, provision.MachineRunning
	var address string
	var others []string
	const mostPort, mostSize = 1<<16 - 1, 1<<31 - 1
	for _, attribute := range []struct {
		name string
		read func(json.RawMessage) error
	}{
		{"status", asStatus(&m.Status)},
		{"resource", asText(&m.Address)}, {"pool", asText(&m.Pool)}, {"node", asText(&m.Node)}, {"external_id", asText(&m.ExternalID)},
		{"address", asText(&address)}, {"addresses", asJSON(&others, "a list of texts")}, {"ssh_port", asNumber(&m.SSHPort, mostPort)}, {"ssh_user", asText(&m.SSHUser)},
		{"image", asText(&m.Image)}, {"cores", asNumber(&m.Cores, mostSize)}, {"memory", asNumber(&m.MemoryMiB, mostSize)}, {"disk", asNumber(&m.DiskGiB, mostSize)},
		{"labels", asJSON(&m.Labels, "a map of texts")},
	} {
		if raw, says := members[attribute.name]; says && !bytes.Equal(raw, []byte("null")) {
			if err := attribute.read(raw); err != nil {
				return m, fmt.Errorf("%s must be %w", attribute.name, err)
			}
		}
	}
	m.IPAddresses = reachable(address, others)
	return m, nil
}

func asJSON[T any](to *T, want string) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		if json.Unmarshal(raw, to) != nil {
			return errors.New(want)
		}
		return nil
	}
}

// asText takes a number, too: what a provider has as an id may be one.
func asText(to *string) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		var number json.Number
		if json.Unmarshal(raw, to) != nil {
			if json.Unmarshal(raw, &number) != nil {
				return errors.New("a text")
			}
			*to = number.String()
		}
		if utf8.RuneCountInString(*to) > provision.MaxAddress {
			return fmt.Errorf("a text of at most %d characters", provision.MaxAddress)
		}
		return nil
	}
}

func asNumber(to *int, most int) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		if json.Unmarshal(raw, to) != nil || *to < 1 || *to > most {
			return fmt.Errorf("a whole number from 1 to %d", most)
		}
		return nil
	}
}

func asStatus(to *provision.MachineStatus) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		if json.Unmarshal(raw, to) == nil {
			switch *to {
			case provision.MachineCreating, provision.MachineRunning, provision.MachineStopped, provision.MachineFailed, provision.MachineUnknown:
				return nil
			}
		}
		return errors.New("creating, running, stopped, failed or unknown")
	}
}
