// The program tendril-dispatcher is tendril for agents whose runs are Jobs of Kubernetes: the same
// verbs, and Kubernetes' client, of which an agent without Jobs need not have the size. "tendril run"
// starts it where run.launcher is kubernetes.
//
// Package agentcmd declares the verbs, package kubejobs makes the Jobs. This package only joins
// them, and must not know what either does.
package main

import (
	"os"

	"github.com/tendril-run/tendril/internal/agentcmd"
	"github.com/tendril-run/tendril/internal/kubejobs"
)

func main() { os.Exit(agentcmd.Main(kubejobs.Open, os.Args[1:], os.Stdout, os.Stderr)) }
