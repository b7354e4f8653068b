package source

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/go-git/go-git/v5/plumbing"

	"github.com/tendril-run/tendril/internal/provision"
)

// maxTag is the longest tag name accepted, in bytes: what a file name holds.
const maxTag = 255

// asCommit returns the commit that a version of 40 hexadecimal digits is.
func asCommit(version string) (plumbing.Hash, bool) {
	if len(version) != 40 || !plumbing.IsHash(version) {
		return plumbing.ZeroHash, false
	}
	return plumbing.NewHash(version), true
}

// checkVersion refuses what is neither a commit nor a name that git allows a
// tag (git-check-ref-format), or that could be read as something else.
func checkVersion(version string) error {
	refuse := func(why string) error {
		return provision.Fail(provision.CodeBadSnapshot,
			fmt.Sprintf("template_source.version: %q %s; it must be a tag or a full commit of 40 hexadecimal digits",
				printable(version, maxTag), why), nil)
	}
	switch {
	case version == "":
		return provision.Fail(provision.CodeBadSnapshot,
			"template_source.version: missing; it must be a tag or a full commit of 40 hexadecimal digits", nil)
	case len(version) > maxTag:
		return refuse("is too long")
	case strings.HasPrefix(version, "-"):
		return refuse("begins with “-” and would be read as an option")
	case strings.HasPrefix(version, "refs/"):
		return refuse("names a reference (refs/…)")
	case version == "@" || strings.Contains(version, "@{") || strings.Contains(version, ".."):
		return refuse("is a revision expression")
	case strings.ContainsFunc(version, func(r rune) bool { return r < ' ' || r == 0x7f || strings.ContainsRune(" ~^:?*[\\", r) }):
		return refuse("has a character that git does not allow in a tag")
	case strings.HasSuffix(version, "."):
		return refuse("ends with a dot")
	}
	for segment := range strings.SplitSeq(version, "/") {
		switch {
		case segment == "":
			return refuse("has an empty segment")
		case strings.HasPrefix(segment, "."):
			return refuse("has a segment that begins with a dot")
		case strings.HasSuffix(segment, ".lock"):
			return refuse("has a segment that ends with .lock")
		}
	}
	return nil
}

// nearest returns up to n of the names that are closest to name and not far
// from it, the closest first.
func nearest(name string, names []string, n int) []string {
	type scored struct {
		name     string
		distance int
	}
	limit := max(2, len(name)/2)
	var near []scored
	for _, candidate := range names {
		if d := levenshtein.Distance(name, candidate, nil); d <= limit {
			near = append(near, scored{candidate, d})
		}
	}
	slices.SortFunc(near, func(a, b scored) int {
		// Of equally close tags the later version is the likelier wish.
		return cmp.Or(cmp.Compare(a.distance, b.distance), -cmp.Compare(a.name, b.name))
	})
	found := make([]string, 0, n)
	for _, s := range near[:min(n, len(near))] {
		found = append(found, printable(s.name, 80))
	}
	return found
}
