package rpcgateway

// The gateway's own statements, for tests that look at what it sends.
const (
	AsAnon        = asAnon
	ReadFunctions = readFunctions
)

// AgentFunctions are the functions that are served unless Options name others.
var AgentFunctions = agentFunctions
