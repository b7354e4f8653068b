// Package templates holds sample templates that run as they are, with no
// network and no provider download. `trellis up` serves them as git
// repositories.
//
// It must know nothing of how they are served or run.
package templates

import (
	"embed"
	"io/fs"
)

//go:embed hello fleet script-vm hand-made
var files embed.FS

// Template is one sample.
type Template struct {
	Name        string
	Description string
	Files       fs.FS
}

// All lists the samples, the one to begin with first.
func All() []Template {
	all := []Template{
		{Name: "hello", Description: "Greets you and prints a line every half second: the first thing to deploy."},
		{Name: "fleet", Description: "Many small resources at once, to see parallel work and progress."},
		{Name: "script-vm", Description: "Machines that a shell script makes in a directory that plays the cloud, without Terraform."},
		{Name: "hand-made", Description: "A server that a person mounts: instructions to follow, and a form for what was done."},
	}
	for i := range all {
		sub, err := fs.Sub(files, all[i].Name)
		if err != nil {
			panic(err) // the name above is no valid path
		}
		all[i].Files = sub
	}
	return all
}
