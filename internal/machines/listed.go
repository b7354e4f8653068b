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

// Listed are the machines as people see them. One whose making or destruction was
// interrupted is unknown, whatever was last heard of it.
func (s *State) Listed() []provision.Machine {
	listed := make([]provision.Machine, 0, len(s.Machines))
	for _, m := range s.Machines {
		status := provision.MachineStatus(m.Status)
		if m.Intent != nil && m.Status != provisioner.StatusCreating {
			status = provision.MachineUnknown
		}
		listed = append(listed, provision.Machine{
			Name: m.Wanted.Name, Status: status, Address: Address(m.Wanted.Name), Pool: m.Wanted.Pool, Node: m.Node,
			ExternalID: m.ExternalID, IPAddresses: m.reachable(), SSHPort: m.SSHPort, Image: m.Wanted.Image,
			Cores: m.Wanted.Cores, MemoryMiB: m.Wanted.Memory, DiskGiB: m.Wanted.Disk, Labels: m.Wanted.Labels,
		})
	}
	return listed
}

// reachable are the machine's IP addresses, the one to reach it at first.
func (m *Machine) reachable() (addresses []string) {
	for _, address := range append([]string{m.Address}, m.Addresses...) {
		if address != "" && !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// Output is the name of the output in which a Terraform template says which machines it has
// made: a map of objects, by the machines' names.
const Output = "machines"

// said is what such a template says of one machine. Everything may be left out or null, and
// what else an object has is the template's own.
type said struct {
	Status     provision.MachineStatus `json:"status"`
	Resource   string                  `json:"resource"`
	Pool       string                  `json:"pool"`
	Node       string                  `json:"node"`
	ExternalID string                  `json:"external_id"`
	Address    string                  `json:"address"`
	Addresses  []string                `json:"addresses"`
	SSHPort    int                     `json:"ssh_port"`
	SSHUser    string                  `json:"ssh_user"`
	Image      string                  `json:"image"`
	Cores      int                     `json:"cores"`
	Memory     int                     `json:"memory"`
	Disk       int                     `json:"disk"`
	Labels     map[string]string       `json:"labels"`
}

// FromOutput reads the value of the output Output. What is wrong with a machine is said of
// it, and the others are listed all the same.
func FromOutput(value json.RawMessage) (listed []provision.Machine, wrong []error) {
	listed = []provision.Machine{}
	var all map[string]json.RawMessage
	if json.Unmarshal(value, &all) != nil {
		return nil, []error{errors.New("it is not a map of objects")}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m, err := fromObject(name, all[name])
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", name, err))
			continue
		}
		listed = append(listed, m)
	}
	return listed, wrong
}

func fromObject(name string, object json.RawMessage) (provision.Machine, error) {
	var of said
	if bytes.Equal(bytes.TrimSpace(object), []byte("null")) {
		return provision.Machine{}, errors.New("it is null, and not an object")
	}
	if err := json.Unmarshal(object, &of); err != nil {
		return provision.Machine{}, badField(err)
	}
	if length := utf8.RuneCountInString(name); length == 0 || length > provision.MaxMachineName {
		return provision.Machine{}, fmt.Errorf("its name has %d characters, not 1 to %d", length, provision.MaxMachineName)
	}
	switch of.Status {
	case "":
		of.Status = provision.MachineRunning
	case provision.MachineCreating, provision.MachineRunning, provision.MachineStopped, provision.MachineFailed, provision.MachineUnknown:
	default:
		return provision.Machine{}, fmt.Errorf("status is %q, and not creating, running, stopped, failed or unknown", of.Status)
	}
	const mostPort, mostSize = 1<<16 - 1, 1<<31 - 1
	for _, number := range []struct {
		name        string
		value, most int
	}{{"ssh_port", of.SSHPort, mostPort}, {"cores", of.Cores, mostSize}, {"memory", of.Memory, mostSize}, {"disk", of.Disk, mostSize}} {
		if number.value < 0 || number.value > number.most {
			return provision.Machine{}, fmt.Errorf("%s is %d, and not 1 to %d", number.name, number.value, number.most)
		}
	}
	as := Machine{Machine: provisioner.Machine{Address: of.Address, Addresses: of.Addresses}}
	return provision.Machine{
		Name: name, Status: of.Status, Address: of.Resource, Pool: of.Pool, Node: of.Node, ExternalID: of.ExternalID,
		IPAddresses: as.reachable(), SSHPort: of.SSHPort, SSHUser: of.SSHUser, Image: of.Image,
		Cores: of.Cores, MemoryMiB: of.Memory, DiskGiB: of.Disk, Labels: of.Labels,
	}, nil
}

// badField says which attribute of a machine is of the wrong type.
func badField(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return fmt.Errorf("%s is a %s, which is not what belongs there", wrong.Field, wrong.Value)
	}
	return errors.New("it is not an object")
}
