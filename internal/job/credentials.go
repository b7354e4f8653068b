package job

import (
	"maps"
	"slices"
	"strings"
)

// Credentials are what a run signs in to clouds with. They go down the control
// pipe, to the engine and nowhere else.
type Credentials struct {
	// Note says in the log where they are from, or that there are none.
	Note string `json:"note,omitempty"`
	// Env are variables of the engine's environment.
	Env map[string]string `json:"env,omitempty"`
	// Files are contents, by the variable that is to name the file.
	Files map[string]string `json:"files,omitempty"`
}

// minCredential is the fewest bytes of a word that is taken for a credential:
// shorter ones, and those of files that are part words of a format, would blot
// out half a log.
const (
	minCredential = 8
	minFileWord   = 16
)

// Secrets are the texts to mask: the values of variables, but for those that by
// their names say where something is, and the longer words of files.
func (c Credentials) Secrets() []string {
	found := map[string]bool{}
	for name, value := range c.Env {
		if value = strings.TrimSpace(value); len(value) >= minCredential && !tellsPlace(name) {
			found[value] = true
		}
	}
	for _, text := range c.Files {
		for _, word := range words(text) {
			found[word] = true
		}
		eachLeaf([]byte(text), func(_, leaf string) {
			if len(leaf) >= minFileWord {
				found[leaf] = true
			}
		})
	}
	return slices.Sorted(maps.Keys(found))
}

// tellsPlace reports whether a variable says where or whose something is. Such
// values are in every plan.
func tellsPlace(name string) bool {
	return slices.ContainsFunc([]string{"REGION", "ZONE", "LOCATION", "PROJECT", "PROFILE", "ROLE_ARN", "SESSION_NAME", "ENVIRONMENT", "ENDPOINT"},
		func(end string) bool { return name == end || strings.HasSuffix(name, "_"+end) })
}

// words are the parts of a file between blanks, without quotes, and what
// follows a sign of assignment in one.
func words(text string) (all []string) {
	for _, field := range strings.Fields(text) {
		for _, word := range []string{field, after(field, "="), after(field, ":")} {
			if word = strings.Trim(word, `"',;{}[]`); len(word) >= minFileWord {
				all = append(all, word)
			}
		}
	}
	return all
}

func after(text, sign string) string {
	_, rest, _ := strings.Cut(text, sign)
	return rest
}
