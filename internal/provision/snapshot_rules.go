package provision

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// The rules below are kept in SQL too, in the trigger that accepts a
// provision: keep both the same. Lengths are in characters, as SQL counts.
// Every check answers what is wrong with the value, or "".

const (
	maxRepo         = 500
	maxVersion      = 200
	maxPath         = 500
	maxWorkspace    = 128
	maxVariableName = 200
	maxEngineVer    = 64
)

var (
	// No user name in https: it would be half of a credential, and git servers
	// take tokens there. No query either, for the same reason.
	repoHTTPS = regexp.MustCompile(`^https://[A-Za-z0-9\[][^/@?#]*/[^?#]+$`)
	// A host never begins with a dash, so that no ssh takes it for an option.
	repoSSH  = regexp.MustCompile(`^ssh://([A-Za-z0-9._][A-Za-z0-9._-]*@)?[A-Za-z0-9\[][^/@]*/.+$`)
	repoSCP  = regexp.MustCompile(`^[A-Za-z0-9._][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^-].*$`)
	repoFile = regexp.MustCompile(`^file:///.+$`)

	workspaceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)
	variableName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)
	engineVersion = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)
)

func checkRepo(repo string) string {
	if problem := checkText(repo, maxRepo); problem != "" {
		return problem
	}
	if strings.ContainsFunc(repo, unicode.IsSpace) {
		return "must not contain white space"
	}
	for _, form := range []*regexp.Regexp{repoHTTPS, repoSSH, repoSCP, repoFile} {
		if form.MatchString(repo) {
			return ""
		}
	}
	// The value is not repeated: what does not fit may hold a password.
	scheme, rest, _ := strings.Cut(repo, "://")
	authority, _, _ := strings.Cut(rest, "/")
	if (scheme == "https" || scheme == "ssh") && strings.Contains(authority, "@") {
		return "must not hold credentials; give them to the agent instead"
	}
	if scheme == "https" && strings.ContainsAny(rest, "?#") {
		return "must not have a query or a fragment"
	}
	return "must be https://HOST/PATH, ssh://[USER@]HOST/PATH, USER@HOST:PATH or file:///PATH"
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
	if problem := checkText(name, maxWorkspace); problem != "" {
		return problem
	}
	switch {
	case !workspaceName.MatchString(name):
		return fmt.Sprintf("%q must start with a letter or a digit and hold only letters, digits and . _ / -", name)
	case strings.Contains(name, ".."), strings.Contains(name, "//"):
		return fmt.Sprintf(`%q must not contain ".." or "//"`, name)
	}
	return ""
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
