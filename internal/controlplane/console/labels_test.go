package console

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestLabelled(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"p_email: an e-mail address is needed":                     "E-mail address: an e-mail address is needed",
		"p_reason: missing; others will want to know":              "Reason: missing; others will want to know",
		"p_policy.approval_expiry: not an interval":                "Plans wait for: not an interval",
		"p_policy.colour: unknown":                                 "Colour: unknown",
		"p_settings.display_name: too long":                        "Display name: too long",
		"config_snapshot.workspace: missing":                       "Workspace: missing",
		"config_snapshot.terraform_vars.size: must be a number":    "size: must be a number",
		"config_snapshot: must be an object":                       "Configuration: must be an object",
		"config_snapshot.meta: must be an object":                  "Meta: must be an object",
		"terraform_vars.a: missing\nsealed_vars.b: for another":    "a: missing\nb: for another",
		"the apply failed: p_email: is what a provider said of it": "the apply failed: p_email: is what a provider said of it",
		"": "",
	} {
		if got := labelled(message); got != want {
			t.Errorf("labelled(%q) = %q, want %q", message, got, want)
		}
	}
}

// Whatever parameter or path SQL names in a refusal, a person reads a label.
func TestEveryRefusalIsLabelled(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../sql/functions/*.sql")
	if err != nil || len(files) < 20 {
		t.Fatalf("the functions in SQL = %v, %v, want all", files, err)
	}
	named := regexp.MustCompile(`'((?:p_[a-z_]+|config_snapshot)[a-z_.%]*: )`)
	found := 0
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			message := strings.ReplaceAll(m[1], "%s", "x") + "wrong"
			if got := labelled(message); strings.Contains(got, "p_") || strings.Contains(got, "config_snapshot") {
				t.Errorf("%s: people read %q, want a label", filepath.Base(path), got)
			}
			found++
		}
	}
	if found < 50 {
		t.Errorf("found %d refusals that name a field, want all of them", found)
	}
}
