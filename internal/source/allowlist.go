package source

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/provision"
)

// address is a repository's address in the one form that policy and cache
// compare.
type address struct{ canonical.Repository }

// key names the repository's directory in the cache.
func (a address) key() string {
	sum := sha256.Sum256([]byte(a.String()))
	return hex.EncodeToString(sum[:])
}

func parseAddress(raw string) (address, error) {
	r, err := canonical.ParseRepository(raw)
	return address{r}, err
}

// Redact returns an address fit to be shown: without what may be credentials.
func Redact(raw string) string { return redact(raw) }

// redact returns raw fit to be shown: what may be credentials is cut out, and
// so are control characters.
func redact(raw string) string {
	if i := strings.IndexAny(raw, "?#"); i >= 0 {
		raw = raw[:i] + "…"
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		scheme, rest = "", raw
	} else {
		scheme += "://"
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 && (scheme != "" || strings.Contains(rest[:i], ":")) {
		rest = "…@" + rest[i+1:]
	}
	return printable(scheme+rest, 200)
}

// printable replaces what would garble a terminal and cuts at limit runes.
func printable(s string, limit int) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n++; n > limit {
			b.WriteString("…")
			break
		}
		if !unicode.IsPrint(r) {
			r = '�'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Allowlist is which repositories an agent consents to run, whatever the
// database says. The zero value allows none.
type Allowlist struct {
	patterns  []address // whose paths may hold wildcards
	allowFile bool
	anyHTTPS  bool // whatever the patterns say
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

func parsePattern(raw string) (address, error) {
	r, err := canonical.ParsePattern(raw)
	if err != nil {
		return address{}, err
	}
	for segment := range strings.SplitSeq(r.Path, "/") {
		if strings.Contains(segment, "**") && segment != "**" {
			return address{}, errors.New("“**” must be a whole segment of the path")
		}
	}
	return address{r}, nil
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
	return slices.ContainsFunc(l.patterns, func(p address) bool {
		// A path has no other wildcard than *.
		return p.Scheme == a.Scheme && p.User == a.User && p.Host == a.Host && p.Port == a.Port && doublestar.MatchUnvalidated(p.Path, a.Path)
	})
}
