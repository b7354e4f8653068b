package redfish

import (
	_ "embed" // of what Ironic has said
	"encoding/json"
	"fmt"
)

// Said is what a real Ironic (21.4, driver redfish) has said of a server whose BMC or image is
// wrong. NODE is the server's UUID, PORT a port and 0x0 an address in memory.
type Said struct {
	// Case is what is wrong, and Asked the provision state that was asked for when it was: manage,
	// active or deleted. "" is a server that is active, and nobody asked for anything.
	Case, Asked string
	// Status is the HTTP status of a request that was refused at once, and Text its fault; else 0.
	Status int `json:",omitempty"`
	// State, Fault and Power are the server's then; Maintenance says whether it is in maintenance.
	State       string
	Power       string `json:",omitempty"`
	Fault       string `json:",omitempty"`
	Maintenance bool   `json:",omitempty"`
	// Text is its last_error.
	Text string
	// Way leads on once the fault is gone, and then the server is manageable or available: manage,
	// deleted, or wait where Ironic finds it out.
	Way string
}

//go:embed said.json
var said []byte

// AllSaid are the cases, by their name.
func AllSaid() ([]Said, error) {
	var all []Said
	if err := json.Unmarshal(said, &all); err != nil {
		return nil, fmt.Errorf("what Ironic has said: %w", err)
	}
	return all, nil
}
