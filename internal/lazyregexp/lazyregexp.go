// Package lazyregexp compiles regular expressions when they are first used.
//
// Agents idle in small memory, and every run is a process of the same program: an
// expression that counts ({0,62}) takes up to megabytes and milliseconds, which
// one that uses none of it is not to pay. It knows nothing of what is matched.
package lazyregexp

import (
	"regexp"
	"sync"
)

// Regexp is a regular expression that is compiled when it is first used. It is
// safe for several goroutines.
type Regexp struct{ compiled func() *regexp.Regexp }

// New returns the expression. One that is wrong panics when it is first used.
func New(expression string) *Regexp {
	return &Regexp{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })}
}

// MatchString reports whether the text has a match.
func (r *Regexp) MatchString(text string) bool { return r.compiled().MatchString(text) }

// FindStringSubmatch returns the first match and its groups, nil if there is none.
func (r *Regexp) FindStringSubmatch(text string) []string {
	return r.compiled().FindStringSubmatch(text)
}

// FindAllStringSubmatch returns the first n matches with their groups, all if n < 0.
func (r *Regexp) FindAllStringSubmatch(text string, n int) [][]string {
	return r.compiled().FindAllStringSubmatch(text, n)
}

// ReplaceAllString returns the text with each match replaced.
func (r *Regexp) ReplaceAllString(text, replacement string) string {
	return r.compiled().ReplaceAllString(text, replacement)
}
