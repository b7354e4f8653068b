//go:build linux

package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/inspect"
)

// inspectTemplateCommand is the process of its own in which a template is looked
// at: what is in it must not take this one along.
func (a *app) inspectTemplateCommand() *cobra.Command {
	return &cobra.Command{
		Use: inspectVerb, Short: "Look at one template, as trellis asks on stdin", Hidden: true, Args: none,
		RunE: func(*cobra.Command, []string) error {
			if code := inspect.Child(os.Stdin, os.Stdout); code != exitOK {
				return outcome(code)
			}
			return nil
		},
	}
}
