package source

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/provision"
)

// Allowlist is which repositories an agent consents to run, whatever the
// database says. The zero value allows none.
type Allowlist struct {
	patterns  []pattern
	allowFile bool
	anyHTTPS  bool // whatever the patterns say
}

// pattern is one entry: an address whose path may hold wildcards.
type pattern struct {
	base     address
	segments []string
}

// ParseAllowlist reads the patterns of [policy] repos. A pattern is a
// repository URL in which "*" stands for any characters of one path segment
// and "**", alone in its segment, for any number of segments, none included.
// Scheme, user, host and port have no wildcards. A trailing ".git" means
// nothing. allowFile admits file:// URLs, which must match a pattern too.
func ParseAllowlist(patterns []string, allowFile bool) (Allowlist, error) {
	list, err := parsePatterns(patterns, allowFile)
	if err != nil {
		return Allowlist{}, fmt.Errorf("[policy] repos: %w", err)
	}
	return list, nil
}

func parsePatterns(patterns []string, allowFile bool) (Allowlist, error) {
	list := Allowlist{allowFile: allowFile}
	for _, raw := range patterns {
		p, err := parsePattern(raw)
		if err != nil {
			return Allowlist{}, fmt.Errorf("pattern %q: %w", redact(raw), err)
		}
		list.patterns = append(list.patterns, p)
	}
	return list, nil
}

func parsePattern(raw string) (pattern, error) {
	r, err := canonical.ParsePattern(raw)
	if err != nil {
		return pattern{}, err
	}
	p := pattern{base: address{r}, segments: strings.Split(r.Path[1:], "/")}
	for _, segment := range p.segments {
		if strings.Contains(segment, "**") && segment != "**" {
			return pattern{}, errors.New("“**” must be a whole segment of the path")
		}
	}
	return p, nil
}

// Permit returns nil when the policy allows repo, else a Failure
// (CodeRepoRefused) that names the setting and shows no credentials.
func (l Allowlist) Permit(repo string) error {
	_, err := l.permit(repo)
	return err
}

// Names reports whether a pattern names a repository.
func (l Allowlist) Names(repo string) bool {
	a, err := parseAddress(repo)
	return err == nil && (a.Scheme != "file" || l.allowFile) && l.match(a)
}

func (l Allowlist) permit(repo string) (address, error) {
	refuse := func(why string) error {
		return provision.Fail(provision.CodeRepoRefused,
			fmt.Sprintf("template_source.repo: this agent refuses %s: %s", redact(repo), why), nil)
	}
	a, err := parseAddress(repo)
	switch {
	case err != nil:
		return address{}, refuse("the address " + err.Error() + " (what may run here is set by [policy] repos in the agent's configuration)")
	case a.Scheme == "file" && !l.allowFile:
		return address{}, refuse("repositories on the agent's own disk are not allowed; allow_file under [policy] in the agent's configuration allows them")
	case l.anyHTTPS && a.Scheme == "https":
		return a, nil
	case len(l.patterns) == 0:
		return address{}, refuse("no repository is allowed; list those that may run under [policy] repos in the agent's configuration")
	case !l.match(a):
		return address{}, refuse("no pattern of [policy] repos in the agent's configuration matches it")
	}
	return a, nil
}

func (l Allowlist) match(a address) bool {
	segments := strings.Split(a.Path[1:], "/")
	for _, p := range l.patterns {
		if p.base.Scheme == a.Scheme && p.base.User == a.User && p.base.Host == a.Host &&
			p.base.Port == a.Port && matchSegments(p.segments, segments) {
			return true
		}
	}
	return false
}

// matchSegments keeps only the last "**" to come back to, so that a pattern of
// many costs no more than their product with the path.
func matchSegments(patterns, segments []string) bool {
	p, s, backP, backS := 0, 0, -1, 0
	for s < len(segments) {
		switch {
		case p < len(patterns) && patterns[p] == "**":
			backP, backS = p, s
			p++
		case p < len(patterns) && matchSegment(patterns[p], segments[s]):
			p++
			s++
		case backP >= 0:
			backS++
			p, s = backP+1, backS
		default:
			return false
		}
	}
	for p < len(patterns) && patterns[p] == "**" {
		p++
	}
	return p == len(patterns)
}

// matchSegment knows "*" only; an address holds nothing else that path.Match
// takes for a wildcard, and neither does a pattern.
func matchSegment(pattern, segment string) bool {
	ok, err := path.Match(pattern, segment)
	return err == nil && ok
}
