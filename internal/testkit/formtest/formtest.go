// Package formtest writes a secret as other people's code does into logs,
// errors and files, for tests that look for it there. It must know nothing of
// what hides secrets: it would have the same gaps.
package formtest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Forms are the texts in which a secret may stand, by what wrote it. In base64
// it stands between other bytes; of what encodes some of these as well only the
// letters are told that are the secret's alone.
func Forms(secret string, before, after []byte) map[string]string {
	whole := slices.Concat(before, []byte(secret), after)
	quoted, _ := json.Marshal(secret) // a string always encodes
	out := map[string]string{
		"raw":   secret,
		"JSON":  string(quoted[1 : len(quoted)-1]),
		"query": url.QueryEscape(secret),
		"path":  url.PathEscape(secret),
		"lower": lowerEscapes(url.QueryEscape(secret)),
		"hex":   fmt.Sprintf("%x", secret),
		"HEX":   strings.ToUpper(fmt.Sprintf("%x", secret)),
	}
	if user := url.UserPassword("u", secret).String(); len(user) > 2 {
		out["user"] = user[2:]
	}
	from, to := (8*len(before)+5)/6, 8*(len(before)+len(secret))/6
	for name, encoding := range map[string]*base64.Encoding{
		"base64": base64.StdEncoding, "raw base64": base64.RawStdEncoding, "URL base64": base64.URLEncoding, "raw URL base64": base64.RawURLEncoding,
	} {
		out[name] = encoding.EncodeToString(whole)[from:to]
	}
	return out
}

// All are the forms in each of the three places in base64, each text once, with
// what it is.
func All(secret string) map[string]string {
	out := map[string]string{}
	for shift := range 3 {
		for name, form := range Forms(secret, make([]byte, shift), make([]byte, 3)) {
			out[form] = name
		}
	}
	return out
}

func lowerEscapes(text string) string {
	for i := 0; i+2 < len(text); i++ {
		if text[i] == '%' {
			text = text[:i] + strings.ToLower(text[i:i+3]) + text[i+3:]
		}
	}
	return text
}
