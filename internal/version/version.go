// Package version is where both programs find out which version of themselves
// they are: what the release has linked in, else what the Go toolchain has
// recorded in the binary.
//
// It must not know what either program does.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// The release's linker sets these (-X); scripts/release.sh and Dockerfile are
// the places that do.
var (
	version string // as 1.2.3, without a v
	commit  string // in hexadecimal, whole
)

// Info is what a program says of itself, as "version -o json" prints it.
type Info struct {
	Version string `json:"version"`
	// Commit is what it was built from; "" where nobody knows.
	Commit string `json:"commit"`
	// Changed: the files were not those of the commit.
	Changed bool `json:"changed"`
	// Contract is the version of the SQL contract that it speaks.
	Contract int `json:"contract"`
	// Go is the toolchain that built it.
	Go string `json:"go"`
	// Platform is as linux/amd64.
	Platform string `json:"platform"`
}

// Of returns what this program is, which speaks that contract.
func Of(contract int) Info {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		build = &debug.BuildInfo{}
	}
	info := describe(version, commit, build)
	info.Contract, info.Go, info.Platform = contract, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
	return info
}

// String returns the version alone.
func String() string { return Of(0).Version }

// Sentence is Info for people, of the program of that name.
func (i Info) Sentence(program string) string {
	built := ""
	if i.Commit != "" {
		built = "commit " + i.Commit[:min(12, len(i.Commit))]
		if i.Changed {
			built += " with changes"
		}
		built += ", "
	}
	return fmt.Sprintf("%s %s, %scontract %d, %s %s", program, i.Version, built, i.Contract, i.Go, i.Platform)
}

// describe prefers what was linked in, then the module's version, then the
// commit.
func describe(version, commit string, build *debug.BuildInfo) Info {
	info := Info{Commit: commit}
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			info.Commit = cmp.Or(commit, s.Value)
		case "vcs.modified":
			info.Changed = s.Value == "true"
		}
	}
	module := build.Main.Version
	if module == "(devel)" {
		module = ""
	}
	info.Version = cmp.Or(version, module, info.Commit[:min(12, len(info.Commit))], "devel")
	return info
}
