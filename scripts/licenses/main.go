// The program licenses checks the licence of everything that is linked into
// the two programs or bundled into the console's pages, says which of them are
// none that may be shipped, and writes what goes with a release: the file of all
// their texts, and for each built program a bill of what it consists of.
//
//	go list -deps ─▶ modules ─┐
//	                          ├─▶ parts with their licence texts ─▶ classified ─▶ complaints, one file, or bills
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
	platforms := flag.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "for which to look at what is linked, by commas")
	bills := flag.String("sbom", "", "write FILE"+billSuffix+" for each built program FILE that is given, which is of this `version`")
	flag.Parse()
	judge, err := newJudge()
	if err == nil && *bills != "" {
		err = writeBills(judge, *bills, flag.Args())
	} else if err == nil {
		err = run(judge, released(strings.Split(*platforms, ",")), *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

// released are the programs that scripts/release.sh builds.
func released(platforms []string) (targets []target) {
	for _, platform := range platforms {
		packages := []string{"./cmd/trellis"}
		if strings.HasPrefix(platform, "linux/") {
			packages = append(packages, "./cmd/tendril", "./cmd/tendril-dispatcher")
		}
		targets = append(targets, target{platform, packages})
	}
	return targets
}

func run(judge *judge, targets []target, out string) error {
	parts, err := allowedParts(judge, targets)
	if err != nil {
		return err
	}
	if out != "" {
		return write(out, parts)
	}
	fmt.Printf("%d parts, all under licences that are allowed: %s\n", len(parts), tally(parts))
	return nil
}

// allowedParts returns what the targets consist of, with their licences, all of
// which may be shipped.
func allowedParts(judge *judge, targets []target) ([]part, error) {
	parts, err := linked(targets)
	if err != nil {
		return nil, err
	}
	var complaints []string
	for i := range parts {
		if err := judge.judge(&parts[i]); err != nil {
			complaints = append(complaints, err.Error())
		}
	}
	if len(complaints) > 0 {
		return nil, fmt.Errorf("%d of %d parts may not be shipped as they are:\n  %s\nTake another part instead, or, if its licence permits what we do, allow it in scripts/licenses/allowed.go",
			len(complaints), len(parts), strings.Join(complaints, "\n  "))
	}
	return parts, nil
}
