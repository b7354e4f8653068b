// Package agentcmd is the agent's command line: run, doctor, workspaces, provisioner,
// exec and version. The program tendril has these verbs at its top, trellis has
// them, hidden, under "trellis tendril", so that one binary is enough on one machine.
//
// It wires packages together and decides nothing itself.
package agentcmd
