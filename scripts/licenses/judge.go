package main

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// sure is from which confidence on a text is taken for a known one: names and
// years differ, conditions do not.
const sure = 0.9

// judge tells licences by their texts.
type judge struct {
	classifier *classifier.Classifier
	// known is what texts have been found to be: many are the same.
	known map[string][]string
}

func newJudge() (*judge, error) {
	c, err := assets.DefaultClassifier()
	if err != nil {
		return nil, fmt.Errorf("load the known licences: %w", err)
	}
	return &judge{classifier: c, known: map[string][]string{}}, nil
}

// A notice accompanies a licence, and is none.
var isLicense = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying)`)

// judge finds out the part's licences. The error says what is wrong with them.
func (j *judge) judge(p *part) error {
	found := map[string]bool{}
	top := false
	for _, name := range slices.Sorted(maps.Keys(p.texts)) {
		if !isLicense.MatchString(path.Base(name)) {
			continue
		}
		top = top || !strings.Contains(name, "/")
		licenses := j.classify(p.texts[name])
		if len(licenses) == 0 {
			return fmt.Errorf("%s %s: its %s is no licence that is known here (SHA-256 %s)", p.name, p.version, name, digest(p.texts[name]))
		}
		for _, license := range licenses {
			if !allowed[license] {
				return fmt.Errorf("%s %s: its %s is %s, which is not allowed", p.name, p.version, name, license)
			}
			found[license] = true
		}
	}
	if !top {
		return fmt.Errorf("%s %s: has no licence", p.name, p.version)
	}
	p.licenses = slices.Sorted(maps.Keys(found))
	return nil
}

// classify returns all licences that a text is of.
func (j *judge) classify(text string) []string {
	sum := digest(text)
	if license, is := readByPeople[sum]; is {
		return []string{license}
	}
	if licenses, is := j.known[sum]; is {
		return licenses
	}
	var licenses []string
	for _, match := range j.classifier.Match([]byte(text)).Matches {
		name := cmp.Or(spdx[match.Name], match.Name)
		if match.MatchType == "License" && match.Confidence >= sure && !slices.Contains(licenses, name) {
			licenses = append(licenses, name)
		}
	}
	j.known[sum] = licenses
	return licenses
}

func digest(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// tally counts parts by licence, the most frequent first.
func tally(parts []part) string {
	counts := map[string]int{}
	for _, p := range parts {
		for _, license := range p.licenses {
			counts[license]++
		}
	}
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s (%d)", name, counts[name])
	}
	return strings.Join(names, ", ")
}
