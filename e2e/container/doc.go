// Package container tests the images as people run them: built by "make images",
// on a Docker network of its own, as a user without rights, with a root file
// system that cannot be written. Containers are killed, replaced and upgraded,
// and what they left behind is counted.
//
// It must not know how the programs work inside. It has no code of its own to
// ship.
package container
