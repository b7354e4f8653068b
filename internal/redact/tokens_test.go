package redact

import (
	"os"
	"strings"
	"testing"
)

// of makes a token at run time, so that scanners do not take this file for a leak.
func of(prefix, chars string, n int) string {
	return prefix + strings.Repeat(chars, n/len(chars)+1)[:n]
}

const alnum = "aB3dE5gH7jK9mN2pQ4rS6tU8vW"

func tokenTexts() map[string]string {
	jwt := of("eyJh", alnum, 30) + "." + of("eyJz", alnum, 60) + "." + of("", alnum, 43)
	return map[string]string{
		"AWS":                  of("AKIA", "ABCD2345", 16),
		"AWS, temporary":       of("ASIA", "QRST6789", 16),
		"GitHub":               of("ghp_", alnum, 36),
		"GitHub App":           of("ghs_", alnum, 36),
		"GitHub, fine-grained": of("github_pat_", alnum, 22) + of("_", alnum, 59),
		"GitLab":               of("glpat-", alnum, 20),
		"Slack":                of("xoxb-", "1234567890-", 40),
		"Google":               of("AIza", alnum, 35),
		"Stripe":               of("sk_live_", alnum, 24),
		"npm":                  of("npm_", alnum, 36),
		"PyPI":                 of("pypi-AgEI", alnum, 100),
		"age":                  of("AGE-SECRET-KEY-1", "QPZRY9X8GF2TVDW0", 58),
		"ours":                 of("tnd_", alnum, 43),
		"Vault":                of("hvs.", alnum, 90),
		"JWT":                  jwt,
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	for name, token := range tokenTexts() {
		wantMasked(t, name, "a "+token+" b\n", "a *** b\n")
		wantMasked(t, name+" in JSON", `{"t":"`+token+`"}`, `{"t":"***"}`)
		wantMasked(t, name+" cut short", "a "+token[:8]+" b\n", "a "+token[:8]+" b\n")
	}
	opaque := of("", alnum, 32)
	wantMasked(t, "Bearer", "Authorization: Bearer "+opaque+"\n", "Authorization: Bearer ***\n")
	wantMasked(t, "short bearer", "authorization: bearer abcdefgh1\n", "authorization: bearer ***\n")
	wantMasked(t, "Go's headers", "map[Authorization:[Bearer "+opaque+"]]", "map[Authorization:[Bearer ***]]")
	wantMasked(t, "URL", "postgres://app:pa@ss@db:5432/x?y\n", "postgres://app:***@db:5432/x?y\n")
	wantMasked(t, "URL with a slash", "amqp://app:pa/ss@db/x\n", "amqp://app:***@db/x\n")
	wantMasked(t, "URL without a user", "redis://:pass@db/0\n", "redis://:***@db/0\n")
	wantMasked(t, "token in a URL", "https://x-access-token:"+of("ghs_", alnum, 36)+"@github.com/a", "https://x-access-token:***@github.com/a")
}

func TestPrivateKeys(t *testing.T) {
	t.Parallel()
	line := of("", alnum, 64)
	key := func(sep, before string) string {
		return "-----BEGIN RSA PRIVATE KEY-----" + sep + before + line + sep + before + line + sep + before + "ab3=" + sep + before + "-----END RSA PRIVATE KEY-----"
	}
	hidden := func(sep, before string) string {
		return strings.NewReplacer(line, Mask, "ab3=", Mask).Replace(key(sep, before))
	}
	wantMasked(t, "key", key("\n", "")+"\nabcd\n", hidden("\n", "")+"\nabcd\n")
	wantMasked(t, "indented", key("\n", "    ")+"\n", hidden("\n", "    ")+"\n")
	wantMasked(t, "in JSON", `{"k":"`+key(`\n`, "")+`\n"}`, `{"k":"`+hidden(`\n`, "")+`\n"}`)
	wantMasked(t, "by a provisioner", key("\n", "local_file.k (local-exec): ")+"\n", hidden("\n", "local_file.k (local-exec): ")+"\n")
	certificate := "-----BEGIN CERTIFICATE-----\n" + line + "\n-----END CERTIFICATE-----\n"
	wantMasked(t, "certificate", certificate, certificate)
	far := "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("some texts\n", maxKey/11) + line + "\n"
	wantMasked(t, "no end", far, far)
}

// What engines and tools print every day has no secret in it.
func TestOrdinaryTextStays(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/ordinary.txt")
	if err != nil {
		t.Fatal(err)
	}
	var s Secrets
	s.Add("hunter2", "correct horse battery staple", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "p@ssw0rd!")
	if got := s.Text(string(text)); got != string(text) {
		t.Errorf("Text() changed ordinary text: %s", firstDifference(got, string(text)))
	}
}

func firstDifference(got, want string) string {
	wants := strings.Split(want, "\n")
	for i, line := range strings.Split(got, "\n") {
		if i >= len(wants) || line != wants[i] {
			return line
		}
	}
	return "(an end is missing)"
}

// wantMasked checks a text as a whole, and cut in two at every place.
func wantMasked(t *testing.T, name, text, want string) {
	t.Helper()
	if got := maskAll(nil, text); got != want {
		t.Errorf("%s: mask(%q) = %q, want %q", name, text, got, want)
		return
	}
	for i := 0; i < len(text); i += 1 + len(text)/300 {
		if got := maskAll(nil, text, i); got != want {
			t.Errorf("%s: mask(%q, %q) = %q, want %q", name, text[:i], text[i:], got, want)
			return
		}
	}
}
