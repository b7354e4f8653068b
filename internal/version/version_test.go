package version

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestDescribe(t *testing.T) {
	t.Parallel()
	const revision = "0123456789abcdef0123456789abcdef01234567"
	clone := func(module, modified string) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: module}, Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: modified},
		}}
	}
	for _, c := range []struct {
		name            string
		version, commit string
		build           *debug.BuildInfo
		want            Info
	}{
		{"a release", "1.2.3", "", clone("v1.2.2-0.20260101000000-0123456789ab", "false"), Info{Version: "1.2.3", Commit: revision}},
		{"a release without its repository", "1.2.3", revision, &debug.BuildInfo{}, Info{Version: "1.2.3", Commit: revision}},
		{"go install", "", "", &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, Info{Version: "v1.2.3"}},
		{"a clone", "", "", clone("(devel)", "true"), Info{Version: revision[:12], Commit: revision, Changed: true}},
		{"nothing known", "", "", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, Info{Version: "devel"}},
	} {
		if got := describe(c.version, c.commit, c.build); got != c.want {
			t.Errorf("%s: describe() = %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestSentence(t *testing.T) {
	t.Parallel()
	info := Info{Version: "1.2.3", Commit: strings.Repeat("ab", 20), Contract: 4, Go: "go1.26", Platform: "linux/amd64"}
	if got, want := info.Sentence("tendril"), "tendril 1.2.3, commit abababababab, contract 4, go1.26 linux/amd64"; got != want {
		t.Errorf("Sentence() = %q, want %q", got, want)
	}
	info.Changed = true
	if got, want := info.Sentence("tendril"), "tendril 1.2.3, commit abababababab with changes, contract 4, go1.26 linux/amd64"; got != want {
		t.Errorf("Sentence() = %q, want %q", got, want)
	}
}
