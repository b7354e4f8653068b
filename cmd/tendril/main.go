// The program tendril is the agent: it claims provisions and runs Terraform
// for them. See internal/agentcmd.
package main

import (
	"os"

	"github.com/tendril-run/tendril/internal/agentcmd"
)

func main() { os.Exit(agentcmd.Main(os.Args[1:], os.Stdout, os.Stderr)) }
