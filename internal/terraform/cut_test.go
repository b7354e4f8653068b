package terraform

import (
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// Half a secret is recognised by nobody, so it is hidden before a text is cut,
// wherever in it that is.
func TestSecretsAreHiddenBeforeATextIsCut(t *testing.T) {
	t.Parallel()
	const secret = "S3cret-that-is-longer-than-a-word"
	hide := func(text string) string { return strings.ReplaceAll(text, secret, "***") }
	r := &Runner{engine: Engine{Kind: Terraform}, out: newOutput(nil, nil), hide: hide}
	texts := map[string]func(padding int) string{
		"an event's message": func(padding int) string {
			p := &progress{command: r.command("apply", "")}
			return p.happened(message{Text: strings.Repeat("x", maxEventText-padding) + secret}, "create").Message
		},
		"a diagnostic": func(padding int) string {
			d := r.command("apply", "").diags
			d.add(diagnostic{Severity: "error", Summary: "no", Detail: strings.Repeat("x", maxErrorText-padding) + secret})
			return d.failure(Terraform, "apply", provision.CodeApplyFailed, errExit).Message
		},
		"an error on stderr": func(padding int) string {
			d := r.command("plan", "").diags
			d.addStderr([]byte("Error: no\n"))
			d.addStderr([]byte(strings.Repeat("x", maxErrorText-len("Error: no\n")-padding) + secret + "\n"))
			return d.failure(Terraform, "plan", provision.CodePlanFailed, errExit).Message
		},
		"the end of stderr": func(padding int) string {
			d := r.command("plan", "").diags
			d.addStderr([]byte("panic: " + secret + strings.Repeat("x", maxTailText-padding)))
			return d.failure(Terraform, "plan", provision.CodePlanFailed, errExit).Message
		},
	}
	for name, of := range texts {
		for padding := range len(secret) + 4 {
			got := of(padding)
			for from := 0; from+4 <= len(secret); from++ {
				if strings.Contains(got, secret[from:from+4]) {
					t.Fatalf("%s, cut at %d: %q has a part of the secret", name, padding, got[max(0, len(got)-100):])
				}
			}
			if !strings.Contains(got, "xxx") {
				t.Fatalf("%s, cut at %d: %q has not the text", name, padding, got)
			}
		}
	}
}
