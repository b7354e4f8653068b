package console

import (
	"encoding/json"
	"fmt"
	"html/template"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/seal"
)

// functions are what templates may call.
func functions() template.FuncMap {
	return template.FuncMap{
		// what components take
		"status":       statusOf,
		"say":          func(state, words string) status { return status{state, words} },
		"instant":      instantOf,
		"actor":        actorOf,
		"notice":       func(kind, icon string) notice { return notice{kind, icon} },
		"noticeOf":     noticeOf,
		"empty":        newEmpty,
		"table":        newTable,
		"number":       func(title string) column { return column{Title: title, Number: true} },
		"unseen":       func(title string) column { return column{Title: title, Unseen: true} },
		"filter":       newFilter,
		"search":       filterSearch,
		"choose":       filterChoose,
		"crumbs":       newCrumbs,
		"planDiff":     planDiff,
		"driftDiff":    driftDiff,
		"diffCounts":   diffCounts,
		"waits":        waitsOf,
		"machineSize":  machineSize,
		"coresLoad":    coresLoad,
		"memoryLoad":   memoryLoad,
		"storageLoad":  storageLoad,
		"quotaLoad":    quotaLoad,
		"templateIcon": templateIcon,

		"sealed":     newSealedOutput,
		"fieldError": newFieldError,
		"sealedHelp": newSealedHelp,

		// what pages ask
		"asset":       assetURL,
		"icon":        icon,
		"menu":        func() []entry { return menu },
		"may":         atLeast,
		"templateOf":  templateOf,
		"fingerprint": seal.Fingerprint,
		"fileName":    fileName,

		// texts and figures
		"sentence":  sentence,
		"duration":  duration,
		"plural":    plural,
		"places":    func(list []store.Reservation, freeIn string) places { return places{list, freeIn} },
		"bytes":     byteSize,
		"json":      indented,
		"short":     short,
		"firstline": firstLine,
		"took":      took,
		"text":      text,
		"deref":     text,
		"visible":   visible,
		"labelled":  labelled,
		"capital":   capital,
		"minus":     func(a, b int) int { return a - b },
		"list":      func(items ...any) []any { return items },
	}
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

// sentence turns a stable word such as "agent_lost" into "Agent lost".
func sentence(word any) string {
	words := strings.ToLower(strings.ReplaceAll(text(word), "_", " "))
	return capital(strings.ReplaceAll(words, " api ", " API "))
}

// texts are values as strings.
func texts[T ~string](values []T) (all []string) {
	for _, v := range values {
		all = append(all, string(v))
	}
	return all
}

// templateOf names a provision's template and its version.
func templateOf(p store.Provision) string {
	return (&runPage{Provision: p}).TemplateName() + " " + p.Template.Version
}

// fileName is a text as part of a file's name: letters, digits and dashes.
func fileName(text string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return r
		}
		return '-'
	}, text), "-")
}

// deref is what a text points to; "" for none.
func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
