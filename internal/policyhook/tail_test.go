package policyhook

import (
	"strings"
	"testing"
)

// Half a secret is recognised by nobody, so it is hidden before a text is cut.
func TestWhatAHookSaidIsHiddenBeforeItIsCut(t *testing.T) {
	t.Parallel()
	const secret = "S3cret-that-is-longer-than-a-word"
	for padding := range len(secret) + 4 {
		said := tail{hide: func(text string) string { return strings.ReplaceAll(text, secret, "***") }}
		if _, err := said.also(nil).Write([]byte(secret + strings.Repeat("x", maxSaid-padding))); err != nil {
			t.Fatal(err)
		}
		got := said.String()
		for from := 0; from+4 <= len(secret); from++ {
			if strings.Contains(got, secret[from:from+4]) {
				t.Fatalf("String(), cut at %d, begins with %q: a part of the secret", padding, got[:40])
			}
		}
	}
}
