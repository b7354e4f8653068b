package main

import (
	"os"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// A class comes up in the simulated cluster; after a restart without it nothing of it is in the
// agent's way.
func TestUpWithPVESim(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	trellis(t, "up", "--data-dir", dir, "--with", "esx").want(t, "up with what there is none of", exitUsage, `--with: "esx" is unknown; write pve-sim or ironic`)
	command := typed(pages.Code(t, "docs/MACHINES.md", "trellis up --with pve-sim"))
	s := up(t, dir, command[1:]...)
	run := func(line string, more ...string) result {
		return trellis(t, append(append(typed(line), more...), "--data-dir", dir)...)
	}
	const class = " --template class --workspace demo/class --var class=net --var pool=pve-sim --var image=debian"
	run("deploy"+class+" --var student_count=2 --follow").want(t, "deploy of a class", exitOK, "Run 1 succeeded")
	run("machines").want(t, "machines", exitOK, "net-teacher", "net-student-02", "192.0.2.12", "running")
	run("pools").want(t, "pools", exitOK, "pve-sim", "proxmox", "reachable", "3/3")
	run("destroy demo/class --yes --follow").want(t, "destroy", exitOK, "succeeded")
	s.signal(os.Interrupt)
	s.end(t)
	up(t, dir)
	run("deploy"+class+" --follow").want(t, "deploy without the simulated cluster", exitFailed, "pve-sim")
}
