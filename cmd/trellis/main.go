// Command trellis is the control plane: migrations, deploys, logs, and
// `trellis up`, which is all of it on one machine. One file holds one verb.
//
// It talks to people and decides nothing: what may be done is up to the
// database (package store), what runs is up to the agent.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"golang.org/x/sys/unix"
)

func main() {
	cobra.EnableCommandSorting = false // they are in the order in which they are met
	os.Exit(newApp(os.Args[0], os.Getenv, os.Stdin, terminalOf(os.Stdout), terminalOf(os.Stderr)).run(os.Args[1:]))
}

// terminalOf looks whether a file is a terminal that understands more than
// plain text: only such one has a window size.
func terminalOf(f *os.File) terminal {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return terminal{
		Writer: f, tty: err == nil && os.Getenv("TERM") != "dumb", color: os.Getenv("NO_COLOR") == "",
		width: func() int { // asked each time: windows are resized
			size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
			if err != nil {
				return 0
			}
			return int(size.Col)
		},
	}
}
