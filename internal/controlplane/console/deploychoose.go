package console

import (
	"net/url"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

const (
	// searchedFrom is how many there are before a search is offered: fewer are seen
	// at once.
	searchedFrom = 9
	// mostChoices are listed; the search finds the others.
	mostChoices = 60
)

// choices are the clusters or templates of a step that meet the words searched
// for, as many as are listed.
type choices struct {
	Words   string
	Places  []store.Place
	Entries []store.Template
	All     int // there are without the words
	Search  bool
	More    bool // than are listed
}

// Count is how many are listed.
func (c choices) Count() int { return len(c.Places) + len(c.Entries) }

// Choices are what the step offers.
func (z *wizard) Choices() choices {
	c := choices{Words: strings.TrimSpace(z.Asked.Get("q"))}
	if z.Step == "cluster" {
		c.All = len(z.Places)
		c.Places = choose(z.Places, c.Words, func(p store.Place) (string, string) {
			state := p.Connectivity
			if p.PausedAt != nil {
				state += " PAUSED"
			}
			return p.Name, state
		})
	} else {
		c.All = len(z.Catalogue)
		c.Entries = choose(z.Catalogue, c.Words, wordsOf)
	}
	c.More = c.Count() > mostChoices
	c.Places, c.Entries = c.Places[:min(len(c.Places), mostChoices)], c.Entries[:min(len(c.Entries), mostChoices)]
	c.Search = c.Words != "" || c.All >= searchedFrom
	return c
}

// wordsOf is what a template is found by: its name, and what is said of it besides.
func wordsOf(e store.Template) (name, rest string) {
	return e.Name, strings.Join([]string{e.Version, e.Description, e.Repo, e.Path}, "\n")
}

// Kept is what is chosen, for a form of this step to be sent with.
func (z *wizard) Kept() map[string]string {
	_, query, _ := strings.Cut(z.URL(z.Step), "?")
	chosen, _ := url.ParseQuery(query) // of our own making
	kept := map[string]string{}
	for name := range chosen {
		kept[name] = chosen.Get(name)
	}
	return kept
}

// choose finds those in which every word stands, whatever its case: first those
// that have them in their name, else in their order.
func choose[T any](all []T, words string, says func(T) (name, rest string)) (found []T) {
	wanted := strings.Fields(strings.ToLower(words))
	var behind []T
	for _, one := range all {
		name, rest := says(one)
		name = strings.ToLower(name)
		text := name + "\n" + strings.ToLower(rest)
		switch {
		case !slices.ContainsFunc(wanted, func(w string) bool { return !strings.Contains(name, w) }):
			found = append(found, one)
		case !slices.ContainsFunc(wanted, func(w string) bool { return !strings.Contains(text, w) }):
			behind = append(behind, one)
		}
	}
	return append(found, behind...)
}
