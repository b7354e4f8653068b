package tools

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/provision"
)

// asksError has the client ask its person for something. It is no failure.
type asksError struct {
	id   string
	form *mcp.ElicitParams
}

func (e *asksError) Error() string { return "the client is asked: " + e.form.Message }

// sentenceError is an error for a model to read: whole sentences, with what to do next.
type sentenceError string

func (e sentenceError) Error() string { return string(e) }

// sentence is fmt.Errorf for what a model reads.
func sentence(format string, values ...any) error {
	return sentenceError(fmt.Sprintf(format, values...))
}

// explain says what went wrong as a model can follow it. What the server says may repeat
// what others wrote, such as the reason of a lock, so it is data.
func (c *call) explain(err error) string {
	if refused, ok := errors.AsType[*problem.RefusedError](err); ok {
		return "Tendril refused this" + reasoned(refused.Reason) + ": " + c.short(refused.Error(), 4*mostNote) + next(refused)
	}
	if away, ok := errors.AsType[*problem.UnreachableError](err); ok {
		return "Tendril could not be asked: " + c.short(away.Error(), mostNote) + ". Try the same call again in some seconds; if it goes on, tell the person."
	}
	if wrong, ok := errors.AsType[*provision.Failure](err); ok {
		return "This can't be deployed: " + c.short(wrong.Error(), 4*mostNote) + ". Correct what it names and call again."
	}
	return err.Error()
}

func reasoned(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// next is what to do about a refusal, by its status.
func next(refused *problem.RefusedError) string {
	switch refused.Status() {
	case http.StatusUnauthorized:
		return ". The token is not valid any more: the person must make another and set it up in this client."
	case http.StatusForbidden:
		return ". This token may not do it. Do not try another way: tell the person what you wanted and why."
	case http.StatusNotFound:
		return `. List what there is, for example with "workspaces", "runs" or "templates", and use a name or number from there.`
	case http.StatusConflict:
		return `. Something else goes on or has changed. Call "run" or "workspace" to see how it stands before you try again.`
	}
	return ". Correct what it names and call again."
}

// isNotFound reports whether a server knows nothing of that name.
func isNotFound(err error) bool {
	refused, ok := errors.AsType[*problem.RefusedError](err)
	return ok && refused.Status() == http.StatusNotFound
}
