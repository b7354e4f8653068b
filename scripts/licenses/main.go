// The program licenses looks at the licence of everything that is linked into
// the two programs or bundled into the console's pages, says which of them are
// none that may be shipped, and writes the file of all their texts that goes
// with a release.
//
//	go list -deps ─▶ modules ─┐
//	                          ├─▶ parts with their licence texts ─▶ classified ─▶ complaints, or one file
//	vendored/licenses.json ───┘
//
// It must not choose: what is allowed stands in allowed.go.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	out := flag.String("write", "", "write all texts to this `file`; without it they are only checked")
	platforms := flag.String("platforms", "linux/amd64,linux/arm64", "for which to look at what is linked, by commas")
	npm := flag.String("npm", "internal/controlplane/console/vendored/licenses.json", "`file` that make assets writes beside its bundles; empty: none")
	flag.Parse()
	packages := flag.Args()
	if len(packages) == 0 {
		packages = []string{"./cmd/tendril", "./cmd/trellis"}
	}
	judge, err := newJudge()
	if err == nil {
		err = run(judge, packages, strings.Split(*platforms, ","), *npm, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

func run(judge *judge, packages, platforms []string, npm, out string) error {
	parts, err := linked(packages, platforms)
	if err != nil {
		return err
	}
	if npm != "" {
		bundled, err := bundled(npm)
		if err != nil {
			return err
		}
		parts = append(parts, bundled...)
	}
	var complaints []string
	for i := range parts {
		if err := judge.judge(&parts[i]); err != nil {
			complaints = append(complaints, err.Error())
		}
	}
	if len(complaints) > 0 {
		return fmt.Errorf("%d of %d parts may not be shipped as they are:\n  %s\nTake another part instead, or, if its licence permits what we do, allow it in scripts/licenses/allowed.go",
			len(complaints), len(parts), strings.Join(complaints, "\n  "))
	}
	if out != "" {
		return write(out, parts)
	}
	fmt.Printf("%d parts, all under licences that are allowed: %s\n", len(parts), tally(parts))
	return nil
}
