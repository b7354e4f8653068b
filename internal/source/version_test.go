package source

import (
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

func TestCheckVersion(t *testing.T) {
	t.Parallel()
	for _, version := range []string{
		"v1", "v1.2.3", "release/2024-01", "1.0.0+build", strings.Repeat("a", 40), "ünïcode", "v1@x", "HEAD",
	} {
		if err := checkVersion(version); err != nil {
			t.Errorf("checkVersion(%q) = %v, want nil", version, err)
		}
	}
	for _, version := range []string{
		"", "-v1", "--upload-pack=id", "refs/heads/main", "refs/tags/v1", "a..b", "a b", "a~1", "a^{}", "a:b", "a?", "a*",
		"a[b", `a\b`, "a\x00", "a\n", "@", "a@{1}", "/a", "a/", "a//b", ".a", "a/.b", "a.lock", "a.lock/b", "a.", strings.Repeat("a", 256),
	} {
		err := checkVersion(version)
		if err == nil {
			t.Errorf("checkVersion(%q) = nil, want an error", version)
			continue
		}
		f := provision.AsFailure(err)
		if f.Code != provision.CodeBadSnapshot || !strings.Contains(f.Message, "template_source.version") {
			t.Errorf("checkVersion(%q) = %q %q, want %q and the path", version, f.Code, f.Message, provision.CodeBadSnapshot)
		}
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	tags := []string{"v1.0.0", "v1.1.0", "v1.2.0", "v2.0.0", "nightly"}
	tests := map[string][]string{
		"1.2.0":  {"v1.2.0"},
		"v1.3.0": {"v1.2.0"},
		"nihtly": {"nightly"},
		"banana": {},
	}
	for name, want := range tests {
		got := nearest(name, tags, 1)
		if !slices.Equal(got, want) {
			t.Errorf("nearest(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestCheckPath(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"": ".", ".": ".", "a": "a", "a/b/": "a/b", "./a": "a", "a//b": "a/b", "...": "...",
	} {
		if got, err := checkPath(raw); err != nil || got != want {
			t.Errorf("checkPath(%q) = %q, %v, want %q", raw, got, err, want)
		}
	}
	for _, raw := range []string{"/", "/etc", "..", "../a", "a/../b", "a/..", "a\x00b", `a\b`, "a\nb"} {
		_, err := checkPath(raw)
		if err == nil {
			t.Errorf("checkPath(%q) = nil error, want one", raw)
			continue
		}
		if f := provision.AsFailure(err); f.Code != provision.CodePathRefused {
			t.Errorf("checkPath(%q): code = %q, want %q", raw, f.Code, provision.CodePathRefused)
		}
	}
}
