package main

import (
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// Tab offers what there is, with a word on each, and is silent where nothing
// answers.
func testCompletion(t *testing.T, dir string) {
	trellis(t, "deploy", "--template", "hello", "--workspace", "acme/prod", "--var", "name=x", "--var", "steps=1", "--follow", "--data-dir", dir).want(t, "deploy", exitOK)
	for words, want := range map[string]string{
		"logs ":              "1\tSUCCESS apply on acme/prod",
		"retry ":             "1\tSUCCESS",
		"resources ":         "acme/prod\ton local",
		"state list ":        "acme/prod",
		"clusters pause ":    "local\tONLINE",
		"deploy --template ": "hello\tv1",
		"deploy --cluster ":  "local",
		"templates show ":    "hello",
		"status -o ":         "json",
		"contexts use ":      "local",
	} {
		var r result
		// Who has to wait for too long gets no words, and presses Tab again.
		patience.AwaitShowing(t, want, func() string { return words + ": " + r.out + r.stderr }, func() bool {
			r = complete(t, dir, words)
			return r.code == exitOK && strings.Contains(r.out, want)
		})
	}
	for words, want := range map[string]string{
		"logs 1 ":                           ":4\n",
		"cancel ":                           ":36\n", // nothing goes on
		"logs --server http://127.0.0.1:1 ": ":4\n",
	} {
		if r := complete(t, dir, words); r.code != exitOK || r.out != want {
			t.Errorf("completion of %q = %d %q %q, want %q alone", words, r.code, r.out, r.stderr, want)
		}
	}
	trellis(t, "completion", "bash").want(t, "completion bash", exitOK, "__start_trellis")
}

// complete is Tab after these words.
func complete(t *testing.T, dir, words string) result {
	t.Helper()
	return trellis(t, append([]string{"__complete", "--data-dir", dir}, strings.Split(words, " ")...)...)
}
