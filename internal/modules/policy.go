package modules

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/source"
)

// Policy is which sources an agent consents to.
type Policy struct {
	any     bool
	sources map[Kind][]source.Allowlist
}

// everything, as a pattern, allows any source.
const everything = "**"

// forms are how patterns of other things than git repositories begin.
var forms = map[string]Kind{"archive::": Archive, "s3::": S3, "gcs::": GCS, "hg::": Mercury}

// NewPolicy reads [policy] modules. What templates may come from modules may,
// too, and so may what the table of a git host names, for that is about modules.
func NewPolicy(policy job.Policy, hosts []job.GitHost) (Policy, error) {
	p := Policy{sources: map[Kind][]source.Allowlist{}}
	add := func(kind Kind, patterns ...string) error {
		list, err := source.ParseAllowlist(patterns, policy.AllowFile)
		if err == nil {
			p.sources[kind] = append(p.sources[kind], list)
		}
		return err
	}
	if err := add(Git, policy.Repos...); err != nil {
		return Policy{}, err
	}
	for _, host := range hosts {
		if err := add(Git, host.Repos...); err != nil {
			return Policy{}, fmt.Errorf("[git.hosts.%q] repos: %w", host.Host, err)
		}
	}
	for _, pattern := range policy.Modules {
		if pattern == everything {
			p.any = true
			continue
		}
		kind, url := parsePattern(pattern)
		err := add(kind, url)
		if kind == Registry && strings.Count(pattern, "/") != 3 && !strings.HasSuffix(pattern, "/**") {
			err = errors.New("it is neither a URL nor HOST/NAMESPACE/NAME/PROVIDER")
		}
		if err != nil {
			return Policy{}, fmt.Errorf("[policy] modules: %q: %w", source.Redact(pattern), err)
		}
	}
	return p, nil
}

// parsePattern returns what a pattern is about, and the pattern of a URL.
func parsePattern(pattern string) (Kind, string) {
	for form, kind := range forms {
		if url, ok := strings.CutPrefix(pattern, form); ok {
			return kind, url
		}
	}
	if rest, ok := strings.CutPrefix(pattern, "oci://"); ok {
		return OCI, "https://" + rest
	}
	if strings.Contains(pattern, "://") || strings.Contains(pattern, "@") {
		return Git, strings.TrimPrefix(pattern, "git::")
	}
	return Registry, "https://" + pattern
}

// Permits reports whether a source is allowed. A local one is: where it leads is
// another question.
func (p Policy) Permits(s Source) bool {
	switch s.Kind {
	case Local:
		return true
	case Unknown:
		return p.any
	case Registry:
		return p.any || p.names(Registry, "https://"+s.Address)
	case Git:
		return p.any || p.names(Git, s.Address) || p.names(Git, twin(s.Address))
	case Archive, OCI, S3, GCS, Mercury:
		return p.any || p.names(s.Kind, s.Address)
	default:
		return false
	}
}

func (p Policy) names(kind Kind, url string) bool {
	return url != "" && slices.ContainsFunc(p.sources[kind], func(list source.Allowlist) bool { return list.Names(url) })
}

// twin is the other name of a repository: modules are often named by the SSH
// address by people who have keys, and an agent with a token asks for the same
// over HTTPS. "" where there is none.
func twin(url string) string {
	if rest, ok := strings.CutPrefix(url, "https://"); ok {
		return "ssh://git@" + rest
	}
	rest, ok := strings.CutPrefix(url, "ssh://git@")
	if !ok {
		if rest, ok = strings.CutPrefix(url, "git@"); !ok {
			return ""
		}
		rest = strings.Replace(rest, ":", "/", 1)
	}
	host, _, _ := strings.Cut(rest, "/")
	if strings.Contains(host, ":") { // a port is one scheme's
		return ""
	}
	return "https://" + rest
}

// Pattern is what would allow a source, for who is to decide; "" if only
// everything would.
func Pattern(s Source) string {
	switch s.Kind {
	case Registry, Git:
		return source.Redact(s.Address)
	case OCI:
		return "oci" + strings.TrimPrefix(source.Redact(s.Address), "https")
	}
	for form, kind := range forms {
		if kind == s.Kind {
			return form + source.Redact(s.Address)
		}
	}
	return everything
}
