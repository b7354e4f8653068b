package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// oneProblemALine finds where the next problem begins in a refusal that has
// several: SQL says them in one line, for PostgREST's status line.
var oneProblemALine = regexp.MustCompile(`; ((?:config_snapshot|p_[a-z_]+)[^ :]*: |\([0-9]+ more\)$)`)

// RefusedError is the database's no to a request. The same request will meet
// it again.
type RefusedError struct {
	Code    string // SQLSTATE, such as PT409
	Reason  string // a stable word, such as workspace_bound; may be empty
	Message string // for people; may have several lines
	Hint    string // what to do; may be empty
	Err     error  // the driver's own error; may be nil
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

// UnreachableError says that the database could not be asked: it is away, does
// not answer in time, or does not let us in. Asking again may help.
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

// translate turns what pgx returns into this package's errors. What the caller
// ended itself stays as it is.
func translate(doing string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return refused
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if _, connecting := errors.AsType[*pgconn.ConnectError](err); connecting || !ok {
		return &UnreachableError{Doing: doing, Err: err}
	}
	e := &RefusedError{Code: pg.Code, Reason: pg.Detail, Message: pg.Message, Hint: pg.Hint, Err: err}
	if strings.HasPrefix(pg.Code, "PT4") {
		e.Message = oneProblemALine.ReplaceAllString(pg.Message, "\n$1")
		return e
	}
	e.Reason, e.Message = "", fmt.Sprintf("could not %s: %s (SQLSTATE %s)", doing, pg.Message, pg.Code)
	switch {
	case pg.Code == "42P01" || pg.Code == "42883" || pg.Code == "3F000" || pg.Code == "42703" || pg.Code == "22023" && strings.Contains(pg.Message, "role"):
		e.Hint = `this database has no Tendril contract, or an older one: run "trellis migrate" against it`
	case pg.Code == "42501":
		e.Hint = "the URL's login role must own the Tendril contract, or be a member of authenticated"
	case pg.Code[:2] == "22" || pg.Code[:2] == "23" || pg.Code[:2] == "42":
	default: // busy, shutting down, out of connections: it passes
		return &UnreachableError{Doing: doing, Err: err}
	}
	return e
}
