package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// functions are what templates may call.
func functions() template.FuncMap {
	return template.FuncMap{
		"asset":       assetURL,
		"icon":        icon,
		"sign":        signOf,
		"sentence":    sentence,
		"time":        timeHTML,
		"duration":    duration,
		"plural":      plural,
		"bytes":       byteSize,
		"json":        indented,
		"short":       short,
		"may":         atLeast,
		"menu":        func() []entry { return menu },
		"fingerprint": seal.Fingerprint,
		"firstline":   firstLine,
		"remedy":      remedy,
		"inspection":  inspection,
		"plancounts":  planCounts,
		"operation":   func(o any) string { return operationWord(provision.Operation(text(o))) },
		"took":        took,
		"value":       outputValue,
		"text":        text,
		"deref":       text,
		"visible":     visible,
		"labelled":    labelled,
		"capital":     capital,
		"minus":       func(a, b int) int { return a - b },
		"dict":        dict,
		"list":        func(items ...any) []any { return items },
	}
}

// timeHTML is an instant, a time.Time or a pointer to one: relative in words,
// exact on hover. The page's script keeps it true. Nothing for none.
func timeHTML(at any) template.HTML {
	var t time.Time
	switch v := at.(type) {
	case time.Time:
		t = v
	case *time.Time:
		if v != nil {
			t = *v
		}
	}
	if t.IsZero() {
		return ""
	}
	t = t.UTC()
	return template.HTML(`<time data-relative datetime="` + t.Format(time.RFC3339Nano) + `" title="` + t.Format("2006-01-02 15:04:05 UTC") + `">` + since(t, time.Now()) + `</time>`) //nolint:gosec // digits and letters of our own making
}

// since says in words how far an instant is from now; times.js says the same.
func since(t, now time.Time) string {
	d := now.Sub(t)
	n := d.Abs().Seconds()
	if n < 5 {
		return "just now"
	}
	unit := "year"
	for _, u := range []struct {
		name string
		size float64
	}{{"second", 60}, {"minute", 60}, {"hour", 24}, {"day", 30}, {"month", 12}} {
		if n < u.size {
			unit = u.name
			break
		}
		n /= u.size
	}
	words := plural(int(n), unit)
	if d < 0 {
		return "in " + words
	}
	return words + " ago"
}

// duration says how long something took: "850 ms", "12 s", "3 min 5 s", "2 h 4 min".
func duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return plural(int(d.Hours())/24, "day")
}

// took is how long something was under way; "" while it is not over.
func took(from, to *time.Time) string {
	if from == nil || to == nil {
		return ""
	}
	return duration(to.Sub(*from))
}

// outputValue is JSON for people: a text as it is, all else indented.
func outputValue(raw json.RawMessage) string {
	var word string
	if json.Unmarshal(raw, &word) == nil {
		return word
	}
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		return string(raw)
	}
	return b.String()
}

// plural is a number of things: "1 agent", "3 agents".
func plural(n any, thing string) string {
	if text(n) == "1" {
		return "1 " + thing
	}
	return text(n) + " " + thing + "s"
}

func byteSize(n int64) string {
	switch {
	case n < 1024:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/1024)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

func indented(v any) (string, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return string(b), err
}

// short cuts a long word, such as a commit, to n characters.
func short(n int, v any) string {
	s := []rune(text(v))
	if len(s) <= n {
		return string(s)
	}
	return string(s[:n])
}

// capital makes a message begin like a sentence.
func capital(s string) string {
	if s == "" {
		return ""
	}
	first, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + s[size:]
}

// firstLine is the first line of a text that says anything.
func firstLine(v any) string {
	for line := range strings.Lines(text(v)) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return ""
}

// atLeast reports whether a role is that of a template's demand or above. It only
// decides what is shown: what may be done is the database's to say.
func atLeast(role, least string) bool {
	ranks := "viewer operator admin"
	return role != "" && strings.Contains(ranks, role) && strings.Index(ranks, role) >= strings.Index(ranks, least)
}

// dict gives a part several values: {{template "x" dict "A" 1 "B" 2}}.
func dict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict has a name without a value")
	}
	d := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		d[text(pairs[i])] = pairs[i+1]
	}
	return d, nil
}

// text is a value as a string, what a pointer points to included; "" for nil.
func text(v any) string {
	r := reflect.ValueOf(v)
	if r.Kind() == reflect.Pointer {
		if r.IsNil() {
			return ""
		}
		v = r.Elem().Interface()
	}
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}
