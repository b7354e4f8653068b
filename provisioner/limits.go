package provisioner

import "time"

// Protocol is the version of the protocol that this package speaks.
const Protocol = "tendril-provisioner/1"

// Limits of a conversation. The agent ends a program that exceeds one.
const (
	// MaxRequest is the longest line to the program, its line end included.
	MaxRequest = 4 << 20
	// MaxLine is the longest line from the program, its line end included.
	MaxLine = 1 << 20
	// MaxConversation is all that a program may write to stdout.
	MaxConversation = 64 << 20
	// MaxMessages is how many lines a program may write to stdout.
	MaxMessages = 100_000
	// MaxState is the longest state, as JSON.
	MaxState = 512 << 10
	// MaxPlan is the longest plan, as JSON.
	MaxPlan = 512 << 10
	// MaxOutput is the longest value of one output, as JSON.
	MaxOutput = 64 << 10
	// MaxMachines is how many machines a request may have.
	MaxMachines = 1000
	// MaxName is the longest name, id, address or external id, in bytes.
	MaxName = 256
	// MaxText is the longest text for people, in bytes. The agent cuts longer ones.
	MaxText = 4096
)

// Time limits. The run's own limit comes from the agent's configuration.
const (
	// DescribeTime is how long a program may take to answer describe: it asks no other system,
	// but a node that is short of everything takes long to start one.
	DescribeTime = 30 * time.Second
	// CancelTime is how long a program may take to answer after cancel.
	CancelTime = 30 * time.Second
	// DetachTime is how long a program may take to answer after detach.
	DetachTime = 30 * time.Second
	// ExitTime is how long a program may take to exit after its result.
	ExitTime = 5 * time.Second
)
