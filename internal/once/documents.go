package once

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/tendril-run/tendril/provisioner"
)

// Timeout is how long a program may take unless the template says otherwise.
const Timeout = 300 * time.Second

// Action is what a program is asked to do.
type Action string

// The actions.
const (
	// Provision makes a machine, or finds the one it has made for the same contract.
	Provision Action = "provision"
	// Terminate destroys a machine. One that isn't there any more is a success.
	Terminate Action = "terminate"
	// HealthCheck asks whether a machine works.
	HealthCheck Action = "health_check"
)

// Request is what a program reads.
type Request struct {
	Action Action `json:"action"`
	// ContractID is the machine's id in Tendril.
	ContractID string `json:"contract_id"`
	// ExternalID is what provision answered. It is left out where Tendril never got an
	// answer: the program finds the machine by ContractID then.
	ExternalID string `json:"external_id,omitempty"`
	// IPAddress and SSHPort are the machine's, for health_check.
	IPAddress string `json:"ip_address,omitempty"`
	SSHPort   int    `json:"ssh_port,omitempty"`
	// Offering is how large the machine has to be, for provision.
	Offering           *Offering       `json:"offering,omitempty"`
	RequesterSSHPubkey string          `json:"requester_ssh_pubkey,omitempty"`
	InstanceConfig     json.RawMessage `json:"instance_config,omitempty"`
}

// Offering is the size of a machine.
type Offering struct {
	ID            string  `json:"id"`
	CPUCores      int     `json:"cpu_cores"`
	MemoryGB      float64 `json:"memory_gb"`
	StorageGB     int     `json:"storage_gb"`
	BandwidthMbps int     `json:"bandwidth_mbps"`
}

// Response is what a program writes.
type Response struct {
	Success bool `json:"success"`
	// Instance answers a provision that succeeded.
	Instance *Instance `json:"instance,omitempty"`
	// Error says what failed.
	Error string `json:"error,omitempty"`
	// RetryPossible says that the same request may succeed later.
	RetryPossible bool `json:"retry_possible,omitempty"`
	// Status is partial where the machine exists and later stages failed.
	Status          provisioner.ResultStatus `json:"status,omitempty"`
	StagesCompleted []string                 `json:"stages_completed,omitempty"`
	// Health answers health_check. Without it a success is healthy, and a failure is
	// unhealthy, or unknown where RetryPossible is true.
	Health provisioner.HealthStatus `json:"health,omitempty"`
}

// Instance is a machine that was made.
type Instance struct {
	ExternalID  string `json:"external_id"`
	IPAddress   string `json:"ip_address,omitempty"`
	IPv6Address string `json:"ipv6_address,omitempty"`
	SSHPort     int    `json:"ssh_port,omitempty"`
	// RootPassword goes to the sealed state and nowhere else.
	RootPassword string `json:"root_password,omitempty"`
}

// ProvisionOf is the request to make a machine. The offering's id is the template's word for
// the size: the machine's label offering, or else its image.
func ProvisionOf(m provisioner.Wanted) Request {
	id := m.Labels["offering"]
	if id == "" {
		id = m.Image
	}
	offering := Offering{ID: id, CPUCores: m.Cores, MemoryGB: float64(m.Memory) / 1024, StorageGB: m.Disk}
	settings := map[string]json.RawMessage{}
	for name, value := range m.Settings {
		if name == "bandwidth_mbps" && json.Unmarshal(value, &offering.BandwidthMbps) == nil {
			continue
		}
		settings[name] = value
	}
	config, err := json.Marshal(settings)
	if err != nil {
		config = []byte("{}") // of what was JSON, there is no error
	}
	return Request{
		Action: Provision, ContractID: m.ID, Offering: &offering,
		RequesterSSHPubkey: strings.Join(m.SSHKeys, "\n"), InstanceConfig: config,
	}
}

// Machine is the instance as the other form has machines.
func (i Instance) Machine(contractID, name string) provisioner.Machine {
	m := provisioner.Machine{
		ID: contractID, Name: name, ExternalID: i.ExternalID, Address: i.IPAddress,
		SSHPort: i.SSHPort, Status: provisioner.StatusRunning,
	}
	for _, address := range []string{i.IPAddress, i.IPv6Address} {
		if address != "" {
			m.Addresses = append(m.Addresses, address)
		}
	}
	if m.Address == "" {
		m.Address = i.IPv6Address
	}
	if i.RootPassword != "" {
		m.Credentials = map[string]string{"root_password": i.RootPassword}
	}
	return m
}

// HealthOf is what a response to health_check says.
func (r Response) HealthOf() provisioner.HealthStatus {
	switch {
	case r.Health != "":
		return r.Health
	case r.Success:
		return provisioner.Healthy
	case r.RetryPossible:
		return provisioner.HealthUnknown
	}
	return provisioner.Unhealthy
}
