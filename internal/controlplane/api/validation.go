package api

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// What huma says of requests that do not fit the document, in our words.
var (
	missingProperty = regexp.MustCompile(`^expected required property (.+) to be present$`)
	oneOf           = regexp.MustCompile(`^expected value to be one of "(.+)"$`)
	bound           = regexp.MustCompile(`^expected number ([<>])= (.+)$`)
	reasons         = map[int]string{
		http.StatusBadRequest:            "malformed_request",
		http.StatusUnauthorized:          "not_signed_in",
		http.StatusNotFound:              "no_such_path",
		http.StatusMethodNotAllowed:      "method_not_allowed",
		http.StatusNotAcceptable:         "not_acceptable",
		http.StatusRequestTimeout:        "request_timeout",
		http.StatusRequestEntityTooLarge: "request_too_large",
		http.StatusUnsupportedMediaType:  "unsupported_media_type",
		http.StatusUnprocessableEntity:   "invalid_request",
		http.StatusInternalServerError:   "internal",
	}
)

// asProblem has every error of huma's own answered as a Problem.
func asProblem(_ huma.Context, _ string, v any) (any, error) {
	e, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	p := newProblem(e.Status, reasons[e.Status], e.Detail, "")
	var lines []string
	for _, d := range e.Errors {
		if d == nil {
			continue
		}
		f := faultOf(d)
		p.Errors = append(p.Errors, f)
		lines = append(lines, f.Location+": "+f.Message)
	}
	if len(lines) > 0 {
		p.Detail = strings.Join(lines, "\n")
	}
	switch e.Status {
	case http.StatusUnsupportedMediaType:
		p.Hint, p.Errors = "send JSON, with Content-Type: application/json", nil
	case http.StatusNotAcceptable:
		p.Detail, p.Hint = "nothing that the Accept header names can be answered", "accept application/json"
	case http.StatusInternalServerError: // a body that could not be read
		p.Detail, p.Errors = "the request could not be read", nil
	}
	return p, nil
}

// faultOf never has the value of a body's field: it may be a secret.
func faultOf(d *huma.ErrorDetail) Fault {
	f := Fault{Location: d.Location, Message: d.Message}
	if found := missingProperty.FindStringSubmatch(d.Message); found != nil {
		f.Location, f.Message = d.Location+"."+found[1], "missing"
	}
	if found := oneOf.FindStringSubmatch(d.Message); found != nil {
		f.Message = "must be one of " + found[1]
	}
	if found := bound.FindStringSubmatch(d.Message); found != nil {
		limit, _ := strconv.ParseFloat(found[2], 64) // huma's own, such as 1e+06
		f.Message = fmt.Sprintf("must be %s %.0f", map[string]string{"<": "at most", ">": "at least"}[found[1]], limit)
	}
	if d.Message == "unexpected property" || d.Message == "unknown query parameter" {
		f.Message = "unknown"
	}
	if text, ok := d.Value.(string); ok && text != "" && len(text) <= 200 && !strings.HasPrefix(d.Location, "body") {
		f.Value = text
	} else if number, ok := d.Value.(int64); ok {
		f.Value = fmt.Sprint(number)
	}
	return f
}
