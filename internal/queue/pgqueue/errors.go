package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/queue"
)

// deafHint is what to do about errDeaf.
const deafHint = `set queue.listen_url to a connection that keeps its session, past the pooler or through one in session mode (Supabase: port 5432), or to "off" where polling will do`

// translate turns what pgx returns into a queue.Error. doing says what was
// tried, for messages that are not the database's own.
func translate(doing string, err error) error {
	if errors.Is(err, errDeaf) {
		return &queue.Error{Kind: queue.Unavailable, Message: err.Error(), Hint: deafHint, Err: err}
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return &queue.Error{Kind: queue.Unavailable, Message: "could not " + doing + ": the database did not answer in time", Err: err}
		}
		return &queue.Error{Kind: queue.Unavailable, Message: fmt.Sprintf("could not %s: %v", doing, err), Err: err}
	}
	e := queue.Answer(doing, pg.Code, pg.Message, pg.Detail, pg.Hint)
	e.Err = err
	if strings.Contains(pg.Message, "unsupported startup parameter") {
		e.Kind, e.Hint = queue.Unauthorized, "a pooler stands between and refuses what the queue URL sets: remove that from the URL and set it on the role, by ALTER ROLE … SET"
	}
	return e
}
