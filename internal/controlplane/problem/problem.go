// Package problem refuses requests. It has the errors that package store returns for a
// database and package client for a server, so that a command need not know which of
// them it asked; and the problem document (RFC 9457) for requests that are refused
// before they reach the REST API.
//
// The API's own operations have it from their framework. This package serves what
// refuses before an operation is reached: unknown paths, sign-in, rate limits.
// Outside of /api/ the answer is plain text.
//
// The package must not know why a request is refused.
package problem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Write refuses a request.
func Write(w http.ResponseWriter, status int, reason, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{ // the client is gone: nobody to tell
		"type": "about:blank", "title": http.StatusText(status), "status": status, "reason": reason, "detail": detail,
	})
}

// Refuse is Write for programs, and the detail alone for everybody else.
func Refuse(w http.ResponseWriter, r *http.Request, status int, reason, detail string) {
	if strings.HasPrefix(r.URL.Path, "/api/") {
		Write(w, status, reason, detail)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, detail, status)
}

// RefusedError is the no to a request, of the database or of a server. The same
// request will meet it again.
type RefusedError struct {
	Code    string // SQLSTATE, such as PT409
	Reason  string // a stable word, such as workspace_bound; may be empty
	Message string // for people; may have several lines
	Hint    string // what to do; may be empty
	Err     error  // of the driver; may be nil
}

func (e *RefusedError) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return fmt.Sprintf("%s (%s)", e.Message, e.Hint)
}

func (e *RefusedError) Unwrap() error { return e.Err }

// Status is the HTTP status that the refusal stands for.
func (e *RefusedError) Status() int {
	if digits, ok := strings.CutPrefix(e.Code, "PT"); ok {
		if status, err := strconv.Atoi(digits); err == nil {
			return status
		}
	}
	return http.StatusInternalServerError
}

// UnreachableError says that the database or the server could not be asked: it is
// away, does not answer in time, or does not let us in. Asking again may help.
type UnreachableError struct {
	Doing string // what was tried
	Err   error
}

func (e *UnreachableError) Error() string {
	if errors.Is(e.Err, context.DeadlineExceeded) {
		return fmt.Sprintf("could not %s: the database did not answer in time", e.Doing)
	}
	return fmt.Sprintf("could not %s: %v", e.Doing, e.Err)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// NotProvisionError says that a word is neither an id nor a number.
type NotProvisionError struct{ Ref string }

func (e *NotProvisionError) Error() string {
	return fmt.Sprintf("%q is neither a run's number nor its id", e.Ref)
}
