// Package templates holds the templates that are examples: each works as it is with a pool of
// your own. They are here to be copied, so the folder of each is a whole template, with a README.
// `trellis up --with pve-sim` offers the class, and `--with ironic` the server, which is why a program
// has those in it.
//
// It must know nothing of how they are served or run.
package templates

import (
	"embed"
	"io/fs"
)

//go:embed class/tendril.hcl class/variables.tf bare-metal/tendril.hcl bare-metal/variables.tf
var files embed.FS

// Class is a class of machines.
func Class() fs.FS { return sub("class") }

// BareMetal is one server.
func BareMetal() fs.FS { return sub("bare-metal") }

func sub(name string) fs.FS {
	one, err := fs.Sub(files, name)
	if err != nil {
		panic(err) // a name above is no valid path
	}
	return one
}
