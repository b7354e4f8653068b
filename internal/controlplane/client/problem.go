package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// problem is a problem document (RFC 9457) as the server makes them.
type problem struct {
	Title  string         `json:"title"`
	Status int            `json:"status"`
	Detail string         `json:"detail"`
	Reason string         `json:"reason"`
	Hint   string         `json:"hint"`
	Errors []problemField `json:"errors"`
}

type problemField struct {
	Location string `json:"location"`
	Message  string `json:"message"`
}

// mostProblem bounds what is read of an answer that is no success.
const mostProblem = 1 << 20

// refusal is what an answer that is no success means.
func (c *Client) refusal(doing string, response *http.Response) error {
	status := response.StatusCode
	if status/100 == 3 {
		return &store.RefusedError{Code: code(status), Reason: "redirected", Message: fmt.Sprintf("could not %s: %s sends to %s", doing, c.base.Host, origin(response.Header.Get("Location"))),
			Hint: "if that is your server, log in there: trellis login URL"}
	}
	var p problem
	data, err := bounded(response.Body, mostProblem)
	told := err == nil && strings.Contains(response.Header.Get("Content-Type"), "json") && json.Unmarshal(data, &p) == nil && (p.Detail != "" || p.Title != "")
	if !told && status >= 500 {
		return &store.UnreachableError{Doing: doing, Err: fmt.Errorf("%s answers %s", c.base.Host, response.Status)}
	}
	if !told {
		return &store.UnreachableError{Doing: doing, Err: fmt.Errorf("%s answers %s, and not as a Tendril server would", c.base.Host, response.Status)}
	}
	message := p.text()
	switch {
	case status == http.StatusUnauthorized:
		hint := p.Hint
		if hint == "" {
			hint = "log in: trellis login " + c.URL()
		}
		if c.options.From != "" {
			hint = "the token is that of " + c.options.From + ": give another, or unset it and log in: trellis login " + c.URL()
		}
		return &store.RefusedError{Code: code(status), Reason: p.Reason, Message: fmt.Sprintf("%s does not know you: %s", c.base.Host, message), Hint: hint}
	case status == http.StatusTooManyRequests || status >= 500:
		return &store.UnreachableError{Doing: doing, Err: errors.New(message)}
	}
	return &store.RefusedError{Code: code(status), Reason: p.Reason, Message: message, Hint: p.Hint}
}

// text is what a problem says, a line for each field that is wrong.
func (p problem) text() string {
	message := strings.ReplaceAll("\n"+p.Detail, "\nbody.", "\n")[1:]
	if message == "" {
		message = p.Title
	}
	for _, field := range p.Errors {
		line := field.Message
		if place := strings.TrimPrefix(field.Location, "body."); place != "" && !strings.HasPrefix(line, place) {
			line = place + ": " + line
		}
		if !strings.Contains(message, line) {
			message += "\n" + line
		}
	}
	return message
}

func code(status int) string { return fmt.Sprintf("PT%d", status) }

// origin is where a redirect leads, without what may be secret in it.
func origin(location string) string {
	u, err := url.Parse(location)
	if err != nil || u.Host == "" {
		return "another page"
	}
	return u.Scheme + "://" + u.Host
}

// away is what a call that got no answer means. What the caller ended itself
// stays as it is.
func (c *Client) away(ctx context.Context, doing string, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	if timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && timeout.Timeout() {
		return &store.UnreachableError{Doing: doing, Err: fmt.Errorf("%s did not answer in time", c.base.Host)}
	}
	if asked, ok := errors.AsType[*url.Error](err); ok {
		err = asked.Err // which repeats the whole URL
	}
	return &store.UnreachableError{Doing: doing, Err: fmt.Errorf("%s cannot be reached: %w", c.base.Host, err)}
}
