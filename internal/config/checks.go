package config

import (
	"encoding/pem"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/tendril-run/tendril/internal/provision"
)

var (
	agentName   = matching(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	backendName = matching(`^[a-z][a-z0-9_]*$`)
	envPattern  = matching(`^[A-Za-z_][A-Za-z0-9_]*\*?$|^\*$`)
)

// matching returns what tells whether a text matches. The pattern is compiled
// when that is asked first: each provision's process is this same program, asks
// nothing, and would pay for it with a quarter of a millisecond.
func matching(pattern string) func(string) bool {
	compiled := sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
	return func(text string) bool { return compiled().MatchString(text) }
}

// within reports whether d lies between two durations, both included.
func (d Duration) within(least, most time.Duration) bool {
	return least <= d.Duration && d.Duration <= most
}

func oneOf(value string, allowed ...string) bool { return slices.Contains(allowed, value) }

func every(values []string, allowed func(string) bool) bool {
	return !slices.ContainsFunc(values, func(value string) bool { return !allowed(value) })
}

// plainPath refuses what a shell would have expanded: here it would make a
// directory called ~.
func plainPath(path string) bool { return path != "" && !strings.HasPrefix(path, "~") }

func regularFile(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	return file.Close() == nil
}

func directory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// pemFile reports whether a file begins, after any comment, with a certificate.
func pemFile(path string) bool {
	if !regularFile(path) {
		return false
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	block, _ := pem.Decode(data)
	return block != nil && block.Type == "CERTIFICATE"
}

// postgresURL goes by the scheme alone: what else is in it is up to the driver,
// which knows more forms than net/url.
func postgresURL(text string) bool {
	if strings.ContainsFunc(text, notVisible) {
		return false
	}
	scheme, rest, ok := strings.Cut(text, "://")
	return ok && oneOf(scheme, "postgres", "postgresql") && rest != ""
}

// notVisible finds what is in no URL and in no key.
func notVisible(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

func webURL(text string) bool {
	parsed, err := url.Parse(text)
	return err == nil && oneOf(parsed.Scheme, "https", "http") && parsed.Host != ""
}

func repoPattern(pattern string) bool {
	return pattern != "" && !strings.ContainsFunc(pattern, unicode.IsSpace)
}

func knownOperation(name string) bool {
	return slices.Contains(provision.Operations, provision.Operation(name))
}

func exactOrNone(version string) bool { return version == "" || provision.ExactVersion(version) }

// uidRange leaves out the uids of the system, and room at the end for a block.
func uidRange(text string) bool {
	if text == "auto" || text == "off" {
		return true
	}
	first, err := strconv.ParseUint(text, 10, 32)
	return err == nil && 1000 <= first && first <= 4_294_000_000
}
