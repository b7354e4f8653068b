package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// Problem is what every request that fails is answered: a problem document (RFC
// 9457).
type Problem struct { //nolint:errname // the word of RFC 9457, and of the document
	wire.Problem

	retryAfter string // seconds; "" where trying again does not help
	// kept is whether repeats with the same Idempotency-Key are answered the same, and replayed
	// whether this is such an answer.
	kept, replayed bool
}

func (p *Problem) Error() string { return p.Detail }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return problemType }

// GetHeaders implements huma.HeadersError.
func (p *Problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.retryAfter != "" {
		h.Set("Retry-After", p.retryAfter)
	}
	if p.replayed {
		h.Set("Idempotency-Replayed", "true")
	}
	return h
}

const problemType = "application/problem+json"

func newProblem(status int, reason, detail, hint string) *Problem {
	return &Problem{Problem: wire.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Reason: reason, Detail: detail, Hint: hint}}
}

// fault is a problem with one field.
func fault(status int, reason, location, message, value string) *Problem {
	p := newProblem(status, reason, location+": "+message, "")
	f := wire.Fault{Location: location, Message: message}
	if value != "" {
		f.Value = value
	}
	p.Errors = []wire.Fault{f}
	return p
}

// problem is what an operation's error is answered. What nobody foresaw is logged
// here, once, and the client is told no more than that.
func (a *api) problem(ctx context.Context, operation string, err error) error {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if refused, ok := errors.AsType[*store.RefusedError](err); ok {
		if p := fromRefusal(refused); p != nil {
			return p
		}
	}
	if none, ok := errors.AsType[*store.NotProvisionError](err); ok {
		return newProblem(http.StatusNotFound, "provision_not_found", none.Error(), "")
	}
	if away, ok := errors.AsType[*store.UnreachableError](err); ok {
		if ctx.Err() == nil {
			a.Log.Warn("a request could not be answered", "operation", operation, "error", away)
		}
		p := newProblem(http.StatusServiceUnavailable, "database_unavailable", "could not "+away.Doing+": the database does not answer, or is busy", "try again in a moment")
		p.retryAfter = "2"
		return p
	}
	if ctx.Err() != nil { // whoever asked is gone, or has waited for too long
		p := newProblem(http.StatusServiceUnavailable, "too_slow", "the request took longer than it may", "try again, or ask for less")
		p.retryAfter = "5"
		return p
	}
	p := newProblem(http.StatusInternalServerError, "internal", "something went wrong that is not the request's fault",
		"tell who runs this server, with the instance: its log has more")
	p.Instance = "urn:uuid:" + uuid.NewString()
	a.Log.Error("a request failed", "operation", operation, "instance", p.Instance, "error", err)
	return p
}

// fromRefusal is what the database's no is answered, nil where it is not meant
// for people.
func fromRefusal(e *store.RefusedError) *Problem {
	status := e.Status()
	switch {
	case e.Code == "22P05", e.Code == "22021", e.Code == "22P02" && strings.Contains(e.Message, "type json"): // a NUL, or half a surrogate pair
		return newProblem(http.StatusUnprocessableEntity, "bad_text", "a text in the request has a NUL character, or one that is no Unicode: it cannot be stored", "leave it out")
	case status < 400 || status > 499:
		return nil
	}
	p := newProblem(status, e.Reason, e.Message, e.Hint)
	if p.Reason == "" {
		p.Reason = "refused"
	}
	lines := strings.Split(e.Message, "\n")
	for i, line := range lines {
		name, message, ok := named(line)
		if !ok {
			continue
		}
		p.Errors = append(p.Errors, wire.Fault{Location: location(name), Message: message})
		lines[i] = strings.TrimPrefix(location(name), "body.") + ": " + message
	}
	p.Detail = strings.Join(lines, "\n")
	return p
}

// badCursor is the answer to a cursor that is none, or of another list.
func badCursor(value string) error {
	return fault(http.StatusUnprocessableEntity, "bad_cursor", "query.cursor", fmt.Sprintf("%q is no cursor of this list", value), "")
}

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

// A field is known by its name to the letter. Without this a second one that is
// written otherwise ("Operation") would be looked at by nobody, and count.
func init() { huma.ValidateStrictCasing = true }

// formats are how bodies are read and answers written: JSON.
func formats() map[string]huma.Format {
	f := huma.DefaultJSONFormat
	f.Unmarshal = readJSON
	return map[string]huma.Format{"application/json": f, "json": f}
}

// readJSON reads a body. Its errors say where in the body, and never what stands
// there: that may be a secret.
func readJSON(data []byte, into any) error {
	err := json.Unmarshal(data, into)
	if broken, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("%s: %w", at(data, broken.Offset), broken)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: a number that is too large, or a value of another type than is needed", at(data, wrong.Offset))
	}
	return err
}

// at is the place of the last of so many bytes, as editors count.
func at(data []byte, read int64) string {
	before := data[:min(max(0, read-1), int64(len(data)))]
	return fmt.Sprintf("line %d, column %d", bytes.Count(before, []byte("\n"))+1, len(before)-bytes.LastIndexByte(before, '\n'))
}

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
func faultOf(d *huma.ErrorDetail) wire.Fault {
	f := wire.Fault{Location: d.Location, Message: d.Message}
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
