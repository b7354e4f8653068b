package api

import (
	"regexp"
	"strings"
)

// The database names what is wrong by its own words: a path in the snapshot
// ("config_snapshot.workspace: missing"), or a parameter of a function
// ("p_name: …").
var namedProblem = regexp.MustCompile(`^(config_snapshot|p_[a-z_]+)(.*?): (.+)$`)

// named takes a line of a refusal apart; false when it is about no field.
func named(line string) (name, message string, ok bool) {
	found := namedProblem.FindStringSubmatch(line)
	if found == nil {
		return "", "", false
	}
	return found[1] + found[2], found[3], true
}

// elsewhere are the parameters that are not the field of a body of their name.
var elsewhere = map[string]string{
	"p_policy":  "body",
	"p_org":     "query.org",
	"p_user":    "path.user",
	"p_overlap": "body.overlap_seconds",
	"p_every":   "body.every_seconds",
}

// location is where in the request a field is that the database names.
func location(name string) string {
	parameter, rest := name, ""
	if i := strings.IndexAny(name, ".["); i >= 0 {
		parameter, rest = name[:i], name[i:]
	}
	if place, ok := elsewhere[parameter]; ok {
		return place + rest
	}
	return "body." + strings.TrimPrefix(parameter, "p_") + rest
}
