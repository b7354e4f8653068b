package provision

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/tendril-run/tendril/internal/canonical"
)

// The rules below are kept in SQL too, in the trigger that accepts a
// provision: keep both the same. Lengths are in characters, as SQL counts.
// Every check answers what is wrong with the value, or "".

const (
	maxVersion      = 200
	maxPath         = 500
	maxVariableName = 200
	maxEngineVer    = 64
)

var (
	variableName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)
	engineVersion = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)
)

func checkRepo(repo string) string {
	if repo == "" {
		return "missing"
	}
	if _, err := canonical.ParseRepository(repo); err != nil {
		return err.Error()
	}
	return ""
}

func checkVersion(version string) string {
	if problem := checkText(version, maxVersion); problem != "" {
		return problem
	}
	switch {
	case strings.HasPrefix(version, "-"):
		return "must not start with a dash"
	case strings.HasPrefix(version, "refs/"):
		return `must be a tag or a full commit, without "refs/"`
	case strings.Contains(version, ".."):
		return `must not contain ".."`
	case strings.ContainsFunc(version, unicode.IsSpace):
		return "must not contain white space"
	case strings.ContainsAny(version, `~^:?*[\`):
		return `must be a tag or a full commit, without any of ~^:?*[\`
	}
	return ""
}

func checkPath(path string) string {
	if path == "" {
		return ""
	}
	if problem := checkText(path, maxPath); problem != "" {
		return problem
	}
	switch {
	case strings.HasPrefix(path, "/"):
		return "must be relative to the repository's root"
	case strings.Contains(path, `\`):
		return "must not contain a backslash"
	case slices.Contains(strings.Split(path, "/"), ".."):
		return `must not contain ".."`
	}
	return ""
}

func checkWorkspace(name string) string {
	if name == "" {
		return "missing"
	}
	problem := canonical.WorkspaceProblem(name)
	if problem == "" {
		return ""
	}
	shown := []rune(name)
	return fmt.Sprintf("%q %s", string(shown[:min(len(shown), 200)]), problem)
}

func checkEngine(engine string) string {
	if engine != "terraform" && engine != "tofu" {
		return `must be "terraform" or "tofu"`
	}
	return ""
}

// ExactVersion reports whether version names one release of an engine, such as
// 1.11.4 or 1.12.0-beta1, rather than a range.
func ExactVersion(version string) bool {
	return len(version) <= maxEngineVer && engineVersion.MatchString(version)
}

func checkEngineVersion(version string) string {
	if !ExactVersion(version) {
		return "must be one exact version, such as 1.11.4"
	}
	return ""
}

func checkVariableName(name string) string {
	if len(name) > maxVariableName || !variableName.MatchString(name) {
		return "not a variable name; letters, digits, _ and - are allowed, a letter or _ first"
	}
	return ""
}

// checkText refuses what no text value may be: empty, longer than longest, or
// with characters that a terminal or a log would obey.
func checkText(value string, longest int) string {
	switch n := len([]rune(value)); {
	case n == 0:
		return "missing"
	case n > longest:
		return fmt.Sprintf("%d characters, at most %d are allowed", n, longest)
	case strings.ContainsFunc(value, unicode.IsControl):
		return "must not contain control characters"
	}
	return ""
}
