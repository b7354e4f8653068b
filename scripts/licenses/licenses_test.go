package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/licenseclassifier/v2/assets"
)

// To load what it knows takes a second.
var loaded = sync.OnceValues(newJudge)

func sharedJudge(t *testing.T) *judge {
	t.Helper()
	j, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// text is a known licence, of the classifier's own.
func text(t *testing.T, name string) string {
	t.Helper()
	text, err := assets.ReadLicenseFile("License/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// program is a module that links one dependency, whose files are given.
func program(t *testing.T, dependency map[string]string) {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"go.mod":              "module example.com/program\n\ngo 1.26\n\nrequire example.com/part v1.2.3\n\nreplace example.com/part => ./part\n",
		"main.go":             "package main\n\nimport \"example.com/part/inner\"\n\nfunc main() { inner.Do() }\n",
		"part/go.mod":         "module example.com/part\n\ngo 1.26\n",
		"part/inner/inner.go": "package inner\n\nfunc Do() {}\n",
	}
	for name, content := range dependency {
		files["part/"+name] = content
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

func TestLinkedParts(t *testing.T) {
	mit, gpl, busl := text(t, "MIT/a.txt"), text(t, "GPL-3.0/license.txt"), text(t, "Business-Source-License-1.1/license.txt")
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string // of the error; "" for none
	}{
		{"allowed", map[string]string{"LICENSE": mit}, ""},
		{"by another name", map[string]string{"LICENCE.md": mit, "NOTICE": "made by somebody"}, ""},
		{"no licence", nil, "example.com/part v1.2.3: has no licence"},
		{"a notice alone", map[string]string{"NOTICE": mit}, "has no licence"},
		{"only further in", map[string]string{"inner/LICENSE": mit}, "has no licence"},
		{"GPL", map[string]string{"LICENSE": gpl}, "its LICENSE is GPL-3.0, which is not allowed"},
		{"BUSL", map[string]string{"LICENSE.txt": busl}, "its LICENSE.txt is Business-Source-License-1.1, which is not allowed"},
		{"GPL beside MIT", map[string]string{"LICENSE": mit, "COPYING": gpl}, "its COPYING is GPL-3.0"},
		{"GPL in one file with MIT", map[string]string{"LICENSE": mit + "\n\n" + gpl}, "GPL-3.0"},
		{"GPL of what is linked of it", map[string]string{"LICENSE": mit, "inner/LICENSE": gpl}, "its inner/LICENSE is GPL-3.0"},
		{"GPL of what is not linked of it", map[string]string{"LICENSE": mit, "other/LICENSE": gpl, "other/other.go": "package other"}, ""},
		{"what nobody knows", map[string]string{"LICENSE": "Ask me."}, "its LICENSE is no licence that is known here"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			program(t, c.files)
			err := run(sharedJudge(t), []target{{"linux/amd64", []string{"."}}}, "")
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("run() = %v, want %q", err, c.want)
			}
		})
	}
}

func TestFileOfAllTexts(t *testing.T) {
	program(t, map[string]string{"LICENSE": "Copyright (c) 2001 Somebody Else\n\n" + text(t, "MIT/a.txt"), "NOTICE": "thanks"})
	if err := run(sharedJudge(t), []target{{"linux/amd64", []string{"."}}, {"linux/arm64", []string{"."}}}, "texts"); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile("texts")
	if err != nil {
		t.Fatal(err)
	}
	for want, times := range map[string]int{"example.com/part v1.2.3: MIT\n": 1, "Somebody Else": 1, "thanks": 1, "example.com/part v1.2.3, NOTICE": 1, "The Go Authors": 1} {
		if got := strings.Count(string(content), want); got != times {
			t.Errorf("the file has %q %d times, want %d", want, got, times)
		}
	}
}

func TestBundledParts(t *testing.T) {
	t.Chdir(t.TempDir())
	put := func(name, content string) {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("package-lock.json", `{"packages": {"": {"version": "0.0.1"}, "node_modules/@a/b": {"version": "1.0.0"}, "node_modules/@a/b/node_modules/c": {"version": "2.0.0"}}}`)
	for _, c := range []struct{ version, license, want string }{
		{"2.0.0", text(t, "ISC/license.txt"), ""},
		{"2.0.1", text(t, "ISC/license.txt"), `c 2.0.1, which package-lock.json beside it has not; run "make assets"`},
		{"2.0.0", text(t, "AGPL-3.0/license.txt"), "c (npm) 2.0.0: its LICENSE is AGPL-3.0"},
	} {
		put("licenses.json", fmt.Sprintf(`[{"name": "c", "version": %q, "texts": {"LICENSE": %q}}]`, c.version, c.license))
		parts, err := bundled("licenses.json")
		if err == nil {
			err = sharedJudge(t).judge(&parts[0])
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("c %s = %v, want %q", c.version, err, c.want)
		}
	}
}

// What the two programs consist of today.
func TestOurParts(t *testing.T) {
	t.Chdir("../..")
	if err := run(sharedJudge(t), released([]string{"linux/amd64", "darwin/arm64"}), ""); err != nil {
		t.Error(err)
	}
}
