//go:build !linux

package main

import "github.com/spf13/cobra"

// What starts agents, templates or servers needs Linux. The verbs that ask a
// server or a database are the same everywhere.

func upCommand(a *app) *cobra.Command {
	return linuxOnly("up", "Run everything on this machine until Ctrl-C")
}

func demoCommand(a *app) *cobra.Command {
	return linuxOnly("demo", "Start everything, deploy the template hello, watch it run, end everything")
}

func serveCommand(a *app) *cobra.Command {
	return linuxOnly("serve", "Serve people and agents over HTTPS from your own PostgreSQL, until stopped")
}

func tendrilCommand(a *app) *cobra.Command {
	cmd := linuxOnly(agentVerb, "The agent")
	cmd.Hidden = true
	return cmd
}

func inspectTemplateCommand(a *app) *cobra.Command {
	cmd := linuxOnly(inspectVerb, "Inspect one template, as trellis asks on stdin")
	cmd.Hidden = true
	return cmd
}

func agentExit(error) int { return exitFailed }
