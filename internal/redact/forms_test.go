package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/formtest"
)

// FuzzForms: a secret is hidden in each form, however the text is cut, and what
// stands around it stays, byte for byte.
func FuzzForms(f *testing.F) {
	f.Add("correct horse & battery/stäple+?", []byte("ab"), []byte("c"), uint64(1))
	f.Add("-----BEGIN KEY-----\nq w<e>rt\"z\\u\n-----END KEY-----", []byte("a"), []byte(""), uint64(2))
	f.Add("${not} %{hcl}", []byte(""), []byte("xyz"), uint64(3))
	f.Add(strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyz~!@#$%^&*()_+", 30), []byte("a"), []byte("b"), uint64(4))
	f.Add("\U0001f600 grinning", []byte("abc"), []byte("\xff"), uint64(5))
	f.Add("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", []byte("a"), []byte("aa"), uint64(6))
	f.Fuzz(func(t *testing.T, secret string, before, after []byte, seed uint64) {
		secret = strings.TrimSpace(cleanString(secret))
		if len(secret) < 8 || len(secret) > 4<<10 || len(before) > 64 || len(after) > 64 || strings.Contains(secret, "*") {
			return
		}
		random := rand.New(rand.NewPCG(seed, 1))
		for name, form := range formtest.Forms(secret, before, after) {
			if len(form) < minEncoded {
				continue
			}
			// Around it stands what no form begins or ends with.
			text := "\x01\x02" + form + "\x02\x01"
			var cuts []int
			for at := random.IntN(9); at < len(text); at += 1 + random.IntN(40) {
				cuts = append(cuts, at)
			}
			got := maskAll([]string{secret}, text, cuts...)
			if got != "\x01\x02"+Mask+"\x02\x01" {
				t.Fatalf("%s: mask(%q) of %q cut at %v = %q, want it hidden", name, text, secret, cuts, got)
			}
		}
	})
}

// What is encoded may be indented, or inside JSON, as in a machine's user data.
func TestLinesAreHiddenInsideWhatIsEncoded(t *testing.T) {
	t.Parallel()
	lines := []string{"canary-of-the-first-line-with-some-more", "canary \"of\" the <second> line"}
	secret := strings.Join(lines, "\n") + "\n"
	for shift := range 3 {
		before := strings.Repeat(" ", shift)
		inJSON, _ := json.Marshal(map[string]string{before: secret})
		for name, text := range map[string]string{
			"indented": before + strings.Join(lines, "\n    "), "in JSON": string(inJSON), "with other ends": before + strings.Join(lines, "\r\n"),
		} {
			got := maskAll([]string{secret}, base64.StdEncoding.EncodeToString([]byte(text)))
			for _, line := range lines {
				quoted, _ := json.Marshal(line)
				for _, text := range []string{line, string(quoted[1 : len(quoted)-1])} {
					for form, what := range formtest.All(text) {
						if strings.Contains(got, form) {
							t.Errorf("%s, %d: mask() = %q has %q as %s", name, shift, got, text, what)
						}
					}
				}
			}
		}
	}
}

// FuzzCuts: what becomes of a text depends on it alone, and not on how it was
// cut, whatever tokens and secrets it has.
func FuzzCuts(f *testing.F) {
	for _, token := range tokenTexts() {
		f.Add("secret-one", "x "+token+" y "+token, uint64(len(token)))
	}
	f.Add("abcd", "-----BEGIN PRIVATE KEY-----\nabcd\n-----END PRIVATE KEY-----\nabcd", uint64(1))
	f.Add("abcd", `-----BEGIN PRIVATE KEY-----\nabcdefghijklmnopqrst\nab==\n-----END`, uint64(2))
	f.Add("://u", "https://u:pass@host https://u:1/x@y a://:b@c://d:e@f", uint64(3))
	f.Add("Bear", "Bearer Bearer abcdefghijklmnopqrstuvwxyz Authorization: Basic eyJhabcdefghi.abcdefghijk.x", uint64(4))
	f.Fuzz(func(t *testing.T, secret, text string, seed uint64) {
		if len(secret) > 512 || len(text) > 20_000 {
			return
		}
		random := rand.New(rand.NewPCG(seed, 2))
		var cuts []int
		for at := random.IntN(5); at < len(text); at += 1 + random.IntN(1+random.IntN(60)) {
			cuts = append(cuts, at)
		}
		whole, cut := maskAll([]string{secret}, text), maskAll([]string{secret}, text, cuts...)
		if whole != cut {
			t.Fatalf("mask(%q) of %q = %q, and cut at %v %q", text, secret, whole, cuts, cut)
		}
	})
}

// FuzzJSON: masked JSON is JSON, has no secret, and is what it was where there
// was none.
func FuzzJSON(f *testing.F) {
	f.Add(`{"a":["hunter2-x",1234567890123,{"hunter2":null,"hunter2 ":1}]}`, "hunter2", "1234567890")
	f.Add(`"a\"b\u003c&c\u0000"`, `a"b<&c`, "x")
	f.Add(`{"***":1,"secret":2}`, "secret", "****")
	f.Add(`[1.0e5,"\ud800",{"":""}] `, "1.0e5", "\ufffd\ufffd")
	f.Fuzz(func(t *testing.T, raw, one, two string) {
		var s Secrets
		s.Add(one, two)
		got := detailMasker{s.patterns()}.json(json.RawMessage(raw))
		if !json.Valid([]byte(raw)) {
			if len(got) > 0 {
				t.Fatalf("json(%q) = %q, want nothing of what is no JSON", raw, got)
			}
			return
		}
		if !json.Valid(got) {
			t.Fatalf("json(%q) of %q, %q = %q, want JSON", raw, one, two, got)
		}
		wantHidden(t, decoded(got), one, two)
		plain := strings.Join(leaves(decoded([]byte(raw))), "\x01")
		if string(got) != raw && s.Text(plain) == cleanString(plain) {
			t.Fatalf("json(%q) of %q, %q = %q, want it unchanged", raw, one, two, got)
		}
	})
}

func wantHidden(t *testing.T, value any, secrets ...string) {
	t.Helper()
	for _, text := range leaves(value) {
		for _, secret := range secrets {
			secret = strings.TrimSpace(secret)
			if len(secret) >= minSecret && !strings.Contains(secret, "*") && strings.Contains(text, secret) {
				t.Fatalf("%q has the secret %q", text, secret)
			}
		}
	}
}

func decoded(raw []byte) (value any) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	_ = decoder.Decode(&value) // it is valid
	return value
}

// leaves are the strings and names in JSON, and its numbers as they stand there.
func leaves(value any) (all []string) {
	switch value := value.(type) {
	case string:
		return []string{value}
	case json.Number:
		return []string{value.String()}
	case []any:
		for _, element := range value {
			all = append(all, leaves(element)...)
		}
	case map[string]any:
		for name, element := range value {
			all = append(append(all, name), leaves(element)...)
		}
	}
	return all
}
