package main

import (
	"strings"
	"testing"
)

// Tab offers what there is, with a word on each, and is silent where nothing
// answers.
func testCompletion(t *testing.T, dir string) {
	trellis(t, "deploy", "--template", "hello", "--workspace", "acme/prod", "--var", "name=x", "--var", "steps=1", "--follow", "--data-dir", dir).want(t, "deploy", exitOK)
	for words, want := range map[string]string{
		"logs ":                             "1\tSUCCESS apply on acme/prod",
		"retry ":                            "1\tSUCCESS",
		"resources ":                        "acme/prod\ton local",
		"state list ":                       "acme/prod",
		"clusters pause ":                   "local\tONLINE",
		"deploy --template ":                "hello\tv1",
		"deploy --cluster ":                 "local",
		"templates show ":                   "hello",
		"status -o ":                        "json",
		"contexts use ":                     "local",
		"logs 1 ":                           ":4\n",
		"cancel ":                           ":36\n", // nothing goes on
		"logs --server http://127.0.0.1:1 ": ":",
	} {
		args := append([]string{"__complete", "--data-dir", dir}, strings.Split(words, " ")...)
		r := trellis(t, args...)
		if r.code != exitOK || !strings.Contains(r.out, want) {
			t.Errorf("completion of %q = %d %q %q, want %q", words, r.code, r.out, r.stderr, want)
		}
	}
	trellis(t, "completion", "bash").want(t, "completion bash", exitOK, "__start_trellis")
}
