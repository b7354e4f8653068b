package rpcgateway

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/tendril-run/tendril/internal/postgrest"
)

// preferences are those of the header Prefer that the gateway honours. It ignores all
// others, but refuses them under handling=strict: a client that limits the rows that
// may change (max-affected) must not believe that the limit holds.
type preferences struct {
	exact    bool
	handling string // "" if the request does not say
}

const (
	preferExact   = "count=exact"
	preferStrict  = "handling=strict"
	preferLenient = "handling=lenient"
)

func preferencesOf(header http.Header) (preferences, *refusal) {
	var p preferences
	var others []string
	for one := range strings.SplitSeq(strings.Join(header.Values("Prefer"), ","), ",") {
		switch one = strings.TrimSpace(one); {
		case one == preferExact:
			p.exact = true
		case (one == preferStrict || one == preferLenient) && p.handling == "":
			p.handling = one
		case one != "" && len(others) < maxNames:
			others = append(others, shortened(one))
		}
	}
	if p.handling == preferStrict && len(others) > 0 {
		return p, &refusal{status: http.StatusBadRequest, body: postgrest.NewError(postgrest.CodeBadPreference,
			"Invalid preferences given with handling=strict", "Invalid preferences: "+strings.Join(others, ", "), "")}
	}
	return p, nil
}

// apply writes which preferences were honoured, and which rows the answer has: all of them.
func (p preferences) apply(header http.Header, rows int) {
	which, count := "*", "*"
	if rows > 0 {
		which = fmt.Sprintf("0-%d", rows-1)
	}
	var honoured []string
	if p.exact {
		count = fmt.Sprint(rows)
		honoured = append(honoured, preferExact)
	}
	if p.handling != "" {
		honoured = append(honoured, p.handling)
	}
	header.Set("Content-Range", which+"/"+count)
	if len(honoured) > 0 {
		header.Set("Preference-Applied", strings.Join(honoured, ", "))
	}
}
