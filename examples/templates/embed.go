// Package templates holds the templates that are examples: each works as it is with a pool of
// your own. They are here to be copied, so the folder of each is a whole template, with a README.
// `trellis up --with pve-sim` offers the class, which is why a program has that one in it.
//
// It must know nothing of how they are served or run.
package templates

import (
	"embed"
	"io/fs"
)

//go:embed class/tendril.hcl class/variables.tf
var files embed.FS

// Class is a class of machines.
func Class() fs.FS {
	class, err := fs.Sub(files, "class")
	if err != nil {
		panic(err) // the name above is no valid path
	}
	return class
}
