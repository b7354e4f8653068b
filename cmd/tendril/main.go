// The program tendril is the agent: it claims runs from the queue and executes
// Terraform for them, one child process for each run.
//
//	tendril run      claims and supervises (package agent)
//	tendril exec     executes one run; only tendril run starts it (package executor)
//	tendril doctor   checks what an agent needs (package doctor)
//
// Package agentcmd declares these and the other verbs. This package only calls it,
// and must not know what a verb does.
package main

import (
	"os"

	"github.com/tendril-run/tendril/internal/agentcmd"
)

func main() { os.Exit(agentcmd.Main(nil, os.Args[1:], os.Stdout, os.Stderr)) }
