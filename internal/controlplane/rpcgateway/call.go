package rpcgateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"github.com/tendril-run/tendril/internal/pgurl"
	"github.com/tendril-run/tendril/internal/postgrest"
)

const (
	// acquireLimit is how long a call waits for a connection.
	acquireLimit = 5 * time.Second
	// connectLimit bounds a connection attempt when the URL does not say.
	connectLimit = 3 * time.Second
	// silentFor is how much longer than its statement a call may take before
	// the database counts as gone.
	silentFor = 3 * time.Second
)

// readOnly is what a server says that was the primary until another took over.
// It may go on answering so for as long as the connection lives.
const readOnly = "25006"

// asAnon makes the transaction one of the role anon. It is sent before each
// call, rather than once on each connection: what is local to a transaction is
// gone with it however that ends, so no call can leave a role behind for the
// next, and a pooler in transaction mode may stand between. It costs 0.015 ms
// of the 0.15 ms that an empty poll takes here, and no round trip.
const asAnon = `SELECT set_config('role', 'anon', true), set_config('request.jwt.claims', '{"role":"anon"}', true),
	set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true)`

// caller calls functions.
type caller struct {
	pool           *pgxpool.Pool
	limits         [][]byte // of statement and lock, for asAnon
	statementLimit time.Duration
	// unnamed: a pooler stands between that does not keep prepared statements.
	unnamed atomic.Bool
}

func openPool(ctx context.Context, o Options) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(o.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err) // pgx redacts the password in this error
	}
	config.BeforeConnect = pgurl.Renew(o.DatabaseURLNow)
	config.MaxConns = int32(o.MaxConns)
	config.MaxConnIdleTime = time.Minute
	if config.ConnConfig.ConnectTimeout == 0 || config.ConnConfig.ConnectTimeout > connectLimit {
		config.ConnConfig.ConnectTimeout = connectLimit
	}
	config.ConnConfig.RuntimeParams["application_name"] = "trellis gateway"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return pool, nil
}

// answered is what a function answered.
type answered struct {
	json json.RawMessage // nil: void
	rows int             // how many; what is no set counts as one
	hold []byte          // tendril.hold, as the function has set it
}

// call runs a function in a transaction of its own. It waits for its turn among those of its address first. Whoever asks may have gone meanwhile: the call is finished all the same,
// for to cut it would cost its connection.
func (c *caller) call(ctx context.Context, turns *semaphore.Weighted, f *function, fields map[string]json.RawMessage, asksHold bool) (answered, *refusal) {
	asksHold = asksHold && !f.void
	var given []argument
	var values [][]byte
	for _, a := range f.args {
		raw, there := fields[a.name]
		if !there {
			continue
		}
		value, no := a.value(raw)
		if no != nil {
			return answered{}, no
		}
		given, values = append(given, a), append(values, value)
	}
	return c.answerOf(ctx, turns, f, f.statement(given, asksHold), values, asksHold)
}

// answerOf runs a statement that asks the function, as anon, once it is its turn.
func (c *caller) answerOf(ctx context.Context, turns *semaphore.Weighted, f *function, statement string, values [][]byte, asksHold bool) (answered, *refusal) {
	acquiring, cancel := context.WithTimeout(ctx, acquireLimit)
	defer cancel()
	if turns.Acquire(acquiring, 1) != nil {
		return answered{}, poolTimeout(acquiring.Err())
	}
	defer turns.Release(1)
	conn, err := c.pool.Acquire(acquiring)
	if err != nil {
		return answered{}, c.noConnection(err)
	}
	defer conn.Release()
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), c.statementLimit+silentFor)
	defer cancel()
	answer, err := c.run(ctx, conn.Conn(), statement, values, asksHold)
	if pg, refused := errors.AsType[*pgconn.PgError](err); refused && pg.Code == readOnly {
		_ = conn.Conn().Close(ctx) // the pool makes another
	}
	return c.answer(f, answer, err)
}

// run has statements prepared when a connection first needs them, which saves a
// third of a call. A pooler in transaction mode cannot have that: it says that
// a name is taken, or unknown, before anything is done, and from then on
// statements have none. default_query_exec_mode in the URL tells it beforehand.
func (c *caller) run(ctx context.Context, conn *pgx.Conn, statement string, values [][]byte, asksHold bool) (answered, error) {
	named := conn.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && !c.unnamed.Load()
	answer, err := run(ctx, conn, c.limits, statement, values, named, asksHold)
	if pg, refused := errors.AsType[*pgconn.PgError](err); named && refused && (pg.Code == "42P05" || pg.Code == "26000") {
		c.unnamed.Store(true)
		return run(ctx, conn, c.limits, statement, values, false, asksHold)
	}
	return answer, err
}

// run sends all statements at once. They are one transaction, for nothing but
// their end is marked; that it was committed is known when all are read.
func run(ctx context.Context, conn *pgx.Conn, limits [][]byte, statement string, values [][]byte, named, asksHold bool) (answered, error) {
	batch := &pgconn.Batch{}
	for _, one := range []struct {
		sql    string
		values [][]byte
	}{{asSigned, signedBy(ctx)}, {asAnon, limits}, {statement, values}} {
		if one.sql == asSigned && one.values == nil {
			continue
		}
		if !named {
			batch.ExecParams(one.sql, one.values, nil, nil, nil)
			continue
		}
		prepared, err := conn.Prepare(ctx, one.sql, one.sql)
		if err != nil {
			return answered{}, err
		}
		batch.ExecPrepared(prepared.Name, one.values, nil, nil)
	}
	results, err := conn.PgConn().ExecBatch(ctx, batch).ReadAll()
	if err != nil {
		return answered{}, err
	}
	rows := results[len(results)-1].Rows
	var hold []byte
	if asksHold && len(rows) == 1 && len(rows[0]) > 1 {
		hold, rows[0] = rows[0][len(rows[0])-1], rows[0][:len(rows[0])-1]
	}
	switch {
	case len(rows) == 1 && len(rows[0]) == 1:
		return answered{rows[0][0], 1, hold}, nil
	case len(rows) == 1 && len(rows[0]) == 2: // a set, and how many rows it has
		count, err := strconv.Atoi(string(rows[0][1]))
		return answered{rows[0][0], count, hold}, err
	}
	return answered{}, errors.New("the call did not answer one value")
}

func (c *caller) answer(f *function, answer answered, err error) (answered, *refusal) {
	pg, refused := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil && f.void:
		return answered{rows: 1}, nil
	case err == nil && answer.json == nil:
		return answered{json: json.RawMessage("null"), rows: 1, hold: answer.hold}, nil
	case err == nil:
		return answer, nil
	case refused:
		return answered{}, refusedBy(pg)
	}
	return answered{}, unavailable(postgrest.CodeLostConnection, "Database client error. Retrying the connection.", err)
}

// noConnection tells apart that all are busy and that none can be made.
func (c *caller) noConnection(err error) *refusal {
	stat := c.pool.Stat()
	if errors.Is(err, context.DeadlineExceeded) && stat.AcquiredConns() == stat.MaxConns() {
		return poolTimeout(err)
	}
	return unavailable(postgrest.CodeNoConnection, "Database connection error. Retrying the connection.", err)
}

func poolTimeout(err error) *refusal {
	r := unavailable(postgrest.CodePoolTimeout, "Timed out acquiring connection from connection pool.", err)
	r.status = http.StatusGatewayTimeout
	return r
}

const (
	// maxNesting is how deep JSON may be. The database recurses into it on a
	// stack that ends, which would be its error and not the client's.
	maxNesting = 512
	// maxListed is how many arguments, and elements of lists among them, there
	// may be: each is taken apart here, for which nobody has shown a token yet.
	maxListed = 10_000
	// maxValues is how many values there may be at all: they take the database
	// many times their size. A mebibyte of JSON, the most that a report may
	// have, holds no more.
	maxValues = 1 << 19
)

// arguments are the fields of a request's body, not yet read further. What is
// JSON but no object has none: PostgREST has it so. It takes the first object
// of an array and ignores the others; here an array is refused unless it is empty. The
// last of several values of one name counts, as in the database.
func parseArguments(body []byte) (map[string]json.RawMessage, *refusal) {
	if len(body) == 0 {
		return nil, nil
	}
	if no := checkShape(body); no != nil {
		return nil, no
	}
	if !utf8.Valid(body) || !json.Valid(body) {
		return nil, badRequest(postgrest.CodeBadBody, "Empty or invalid json")
	}
	const space = " \t\r\n"
	switch body := bytes.TrimLeft(body, space); {
	case body[0] == '[' && bytes.TrimLeft(body[1:], space)[0] != ']':
		return nil, badRequest(postgrest.CodeBadBody, "The body is an array: arguments are the fields of one object")
	case body[0] != '{':
		return nil, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, badRequest(postgrest.CodeBadBody, "Empty or invalid json")
	}
	return fields, nil
}

// checkShape counts brackets and commas; whether they match is not asked here.
func checkShape(body []byte) *refusal {
	depth, listed, values, quoted := 0, 0, 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxNesting {
				return badRequest(postgrest.CodeBadBody, "Empty or invalid json")
			}
		case c == '}' || c == ']':
			depth--
		case c == ',':
			if values++; depth <= 2 {
				listed++
			}
			if listed > maxListed || values > maxValues {
				return sqlRefusal("PT413", "the request has too many values", "too_many_values", "")
			}
		}
	}
	return nil
}

// names are those of the arguments, in order.
func names(fields map[string]json.RawMessage) []string { return slices.Sorted(maps.Keys(fields)) }

// value is a JSON value as the text that an argument's type is read from, nil
// for NULL: what json_to_record makes of it.
func (a argument) value(raw json.RawMessage) ([]byte, *refusal) {
	switch {
	case bytes.Equal(raw, []byte("null")):
		return nil, nil
	case a.json:
		return raw, nil
	case a.array && raw[0] == '[':
		return a.arrayLiteral(raw)
	case a.array && raw[0] != '"':
		return nil, sqlRefusal("22P02", "expected JSON array", "", `See the value of key "`+a.name+`".`)
	}
	text, no := scalar(raw)
	if a.array && no == nil && (bytes.Count(text, []byte("{")) > 1 || bytes.HasPrefix(text, []byte("["))) {
		// No function takes more than a list, and too many dimensions are the
		// database's error.
		return nil, sqlRefusal("22P02", "malformed array literal", "", `See the value of key "`+a.name+`".`)
	}
	return text, no
}

// scalar is a string's text, and of anything else the JSON.
func scalar(raw json.RawMessage) ([]byte, *refusal) {
	if raw[0] != '"' {
		return raw, nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, badRequest(postgrest.CodeBadBody, "Empty or invalid json")
	}
	if strings.ContainsRune(text, 0) {
		return nil, sqlRefusal("22P05", "unsupported Unicode escape sequence", `\u0000 cannot be converted to text.`, "")
	}
	return []byte(text), nil
}

// arrayLiteral writes a JSON array as PostgreSQL reads it, each element quoted.
func (a argument) arrayLiteral(raw json.RawMessage) ([]byte, *refusal) {
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return nil, badRequest(postgrest.CodeBadBody, "Empty or invalid json")
	}
	var literal bytes.Buffer
	literal.WriteByte('{')
	for i, element := range elements {
		if i > 0 {
			literal.WriteByte(',')
		}
		if bytes.Equal(element, []byte("null")) {
			literal.WriteString("NULL")
			continue
		}
		text, no := scalar(element)
		if no != nil {
			return nil, no
		}
		literal.WriteByte('"')
		for _, c := range text {
			if c == '"' || c == '\\' {
				literal.WriteByte('\\')
			}
			literal.WriteByte(c)
		}
		literal.WriteByte('"')
	}
	literal.WriteByte('}')
	return literal.Bytes(), nil
}
