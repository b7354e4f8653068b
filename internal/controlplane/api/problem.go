package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// Problem is what every request that fails is answered: a problem document (RFC
// 9457).
type Problem struct { //nolint:errname // the word of RFC 9457, and of the document
	Type   string `json:"type" doc:"Always about:blank: the reason says which problem it is." example:"about:blank"`
	Title  string `json:"title" doc:"What the status code means." example:"Unprocessable Entity"`
	Status int    `json:"status" doc:"The HTTP status code." example:"422" minimum:"400" maximum:"599"`
	Reason string `json:"reason" doc:"Which problem it is: a word that stays the same, for programs to tell by." example:"bad_snapshot"`
	Detail string `json:"detail" doc:"What is wrong, for people. It may have several lines." example:"config_snapshot.workspace: missing"`
	Hint   string `json:"hint,omitempty" doc:"What to do about it, for people." example:"choose another name"`
	// Errors name the fields.
	Errors []Fault `json:"errors,omitempty" nullable:"false" doc:"What is wrong, field by field, where it is about fields."`
	// Instance is in the server's log as well.
	Instance string `json:"instance,omitempty" doc:"Names this one occurrence in the server's log, where that has more to tell." format:"uri" example:"urn:uuid:5f2a9c1e-3b7d-4a80-9c55-d1e0a8f3b642"`

	retryAfter string // seconds; "" where trying again does not help
}

// Fault is what is wrong with one field of a request.
type Fault struct {
	Location string `json:"location" doc:"Where: the path of the field, beginning with body, query, path or header." example:"body.config_snapshot.workspace"`
	Message  string `json:"message" doc:"What is wrong with it." example:"missing"`
	Value    any    `json:"value,omitempty" doc:"What was sent there; of a body never, for it may be a secret."`
}

func (p *Problem) Error() string { return p.Detail }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return problemType }

// GetHeaders implements huma.HeadersError.
func (p *Problem) GetHeaders() http.Header {
	if p.retryAfter == "" {
		return nil
	}
	return http.Header{"Retry-After": {p.retryAfter}}
}

const problemType = "application/problem+json"

func newProblem(status int, reason, detail, hint string) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Reason: reason, Detail: detail, Hint: hint}
}

// fault is a problem with one field.
func fault(status int, reason, location, message, value string) *Problem {
	p := newProblem(status, reason, location+": "+message, "")
	f := Fault{Location: location, Message: message}
	if value != "" {
		f.Value = value
	}
	p.Errors = []Fault{f}
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
		p.Errors = append(p.Errors, Fault{Location: location(name), Message: message})
		lines[i] = strings.TrimPrefix(location(name), "body.") + ": " + message
	}
	p.Detail = strings.Join(lines, "\n")
	return p
}

// badCursor is the answer to a cursor that is none, or of another list.
func badCursor(value string) error {
	return fault(http.StatusUnprocessableEntity, "bad_cursor", "query.cursor", fmt.Sprintf("%q is no cursor of this list", value), "")
}
