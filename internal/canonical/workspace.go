package canonical

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/tendril-run/tendril/internal/lazyregexp"
)

// maxWorkspace is the longest name of a workspace, in characters.
const maxWorkspace = 128

var (
	workspaceName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)
	aroundName    = lazyregexp.New(`^[ /]+|[ /]+$`)
	emptySegment  = lazyregexp.New(`(/\.?)+/`)
	lastDot       = lazyregexp.New(`(/\.)+$`)
)

// WorkspaceProblem says why a name is not that of a workspace, and which name to
// use instead; "" where nothing is wrong. A workspace has exactly one spelling,
// because policies, credentials and sealed values are chosen by it.
func WorkspaceProblem(name string) string {
	if isWorkspace(name) {
		return ""
	}
	const rule = `may hold letters, digits and . _ / - only, must begin with a letter or digit, must not hold "..", and has at most 128 characters`
	if utf8.RuneCountInString(name) > 4*maxWorkspace {
		return rule
	}
	usual := norm.NFKC.String(name)
	usual = aroundName.ReplaceAllString(lastDot.ReplaceAllString(emptySegment.ReplaceAllString(usual, "/"), ""), "")
	if isWorkspace(usual) {
		return fmt.Sprintf("is not how this workspace is written; write %s", usual)
	}
	for _, c := range name {
		if c >= utf8.RuneSelf {
			return fmt.Sprintf("has the character U+%04X, which is not ASCII; use letters A to Z, digits and . _ / - only", c)
		}
	}
	return rule
}

func isWorkspace(name string) bool {
	if len(name) > maxWorkspace || !workspaceName.MatchString(name) || strings.Contains(name, "..") {
		return false
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || segment == "." {
			return false
		}
	}
	return true
}
