package source

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"

	"github.com/tendril-run/tendril/internal/canonical"
)

// address is a repository's address in the one form that policy and cache
// compare.
type address struct{ canonical.Repository }

// key names the repository's directory in the cache.
func (a address) key() string {
	sum := sha256.Sum256([]byte(a.String()))
	return hex.EncodeToString(sum[:])
}

func parseAddress(raw string) (address, error) {
	r, err := canonical.ParseRepository(raw)
	return address{r}, err
}

// Redact returns an address fit to be shown: without what may be credentials.
func Redact(raw string) string { return redact(raw) }

// redact returns raw fit to be shown: what may be credentials is cut out, and
// so are control characters.
func redact(raw string) string {
	if i := strings.IndexAny(raw, "?#"); i >= 0 {
		raw = raw[:i] + "…"
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		scheme, rest = "", raw
	} else {
		scheme += "://"
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 && (scheme != "" || strings.Contains(rest[:i], ":")) {
		rest = "…@" + rest[i+1:]
	}
	return printable(scheme+rest, 200)
}

// printable replaces what would garble a terminal and cuts at limit runes.
func printable(s string, limit int) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n++; n > limit {
			b.WriteString("…")
			break
		}
		if !unicode.IsPrint(r) {
			r = '�'
		}
		b.WriteRune(r)
	}
	return b.String()
}
