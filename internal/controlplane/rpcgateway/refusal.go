package rpcgateway

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agext/levenshtein"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/postgrest"
)

// refusal is an answer that is no success.
type refusal struct {
	status     int
	body       any // a postgrest.Error, or what Supabase's front door says
	header     map[string]string
	retryAfter string // seconds
	cause      error  // for the log only
}

// write sends the answer.
func (r *refusal) write(w http.ResponseWriter) {
	for name, value := range r.header {
		w.Header().Set(name, value)
	}
	if r.retryAfter != "" {
		w.Header().Set("Retry-After", r.retryAfter)
	}
	w.Header().Set("Content-Type", postgrest.AnswerContentType)
	w.WriteHeader(r.status)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(r.body) // the client is gone: nobody to tell
}

// code is that of the error, "" where it has none.
func (r *refusal) code() string {
	e, _ := r.body.(postgrest.Error)
	return e.Code
}

func badRequest(code, message string) *refusal {
	return &refusal{status: http.StatusBadRequest, body: postgrest.NewError(code, message, "", "")}
}

func sqlRefusal(code, message, details, hint string) *refusal {
	r := &refusal{status: postgrest.StatusOf(code), body: postgrest.NewError(code, message, details, hint)}
	switch r.status {
	case http.StatusUnauthorized:
		r.header = map[string]string{"WWW-Authenticate": "Bearer"}
	case http.StatusServiceUnavailable:
		r.retryAfter = "1"
	}
	return r
}

// refusedBy is the database's own answer: no more of it than PostgREST tells. A
// function can set status, headers and body of PostgREST's answer by SQLSTATE PGRST;
// here that is an error, since no function that is served does.
func refusedBy(pg *pgconn.PgError) *refusal {
	if pg.Code == "PGRST" {
		return &refusal{status: http.StatusInternalServerError, body: postgrest.NewError(postgrest.CodeBadRaise,
			"The function raised SQLSTATE PGRST, which this server does not take", "", "raise SQLSTATE PTxyz for the HTTP status xyz")}
	}
	return sqlRefusal(pg.Code, pg.Message, pg.Detail, pg.Hint)
}

// unavailable is for what may work a moment later. Why is told to the log only,
// for it names hosts and users.
func unavailable(code, message string, cause error) *refusal {
	return &refusal{status: http.StatusServiceUnavailable, body: postgrest.NewError(code, message, "", ""), retryAfter: "2", cause: cause}
}

// Names of a request that are repeated in an answer: so many of them, and of
// each so much.
const maxNames, maxName = 32, 64

func shortened(name string) string {
	if len(name) > maxName {
		return strings.ToValidUTF8(name[:maxName], "") + "…"
	}
	return name
}

// noFunction tells that nothing answers to a name and arguments, in PostgREST's
// words. nearest is what may have been meant, with "" for nothing.
func noFunction(name string, given []string, nearest string) *refusal {
	function := postgrest.Schema + "." + shortened(name)
	called, searched := function+" without parameters", function+" without parameters"
	if len(given) > 0 {
		list := make([]string, 0, maxNames)
		for _, arg := range given[:min(len(given), maxNames)] {
			list = append(list, shortened(arg))
		}
		if len(given) > maxNames {
			list = append(list, "…")
		}
		args := strings.Join(list, ", ")
		called, searched = function+"("+args+")", function+" with parameter "+args
		if len(given) > 1 {
			searched = function + " with parameters " + args
		}
	}
	return notFound(called, searched+" or with a single unnamed json/jsonb parameter", nearest)
}

// manyFunctions tells that several functions take the arguments, in PostgREST's words.
func manyFunctions(fit []*function) *refusal {
	described := make([]string, len(fit))
	for i, f := range fit {
		args := make([]string, len(f.args))
		for j, a := range f.args {
			args[j] = a.name + " => " + a.typ
		}
		described[i] = postgrest.Schema + "." + f.name + "(" + strings.Join(args, ", ") + ")"
	}
	return &refusal{status: http.StatusMultipleChoices, body: postgrest.NewError(postgrest.CodeManyFunctions,
		"Could not choose the best candidate function between: "+strings.Join(described, ", "), "", "drop all of them but one, or give them parameters of different names")}
}

// noRawFunction is noFunction for a body of another type, which PostgREST takes
// for a function's only argument.
func noRawFunction(name, kind string) *refusal {
	function := postgrest.Schema + "." + shortened(name)
	return notFound(function, function+" with a single unnamed "+kind+" parameter", "")
}

func notFound(called, searched, nearest string) *refusal {
	hint := ""
	if nearest != "" {
		hint = "Perhaps you meant to call the function " + postgrest.Schema + "." + nearest
	}
	return &refusal{status: http.StatusNotFound, body: postgrest.NewError(postgrest.CodeNoFunction,
		"Could not find the function "+called+" in the schema cache",
		"Searched for the function "+searched+", but no matches were found in the schema cache.", hint)}
}

// similar is how alike a name must be to be hinted at, as in PostgREST.
const similar = 0.75

// nearest is the function whose name is most like this one.
func (c *catalogue) nearest(name string) string {
	best, likeness := "", similar
	for _, known := range c.names {
		if l := levenshtein.Similarity(shortened(name), known, nil); l >= likeness && known != name {
			best, likeness = known, l
		}
	}
	return best
}

func tooMany(wait time.Duration) *refusal {
	return &refusal{status: http.StatusTooManyRequests, retryAfter: strconv.Itoa(int(math.Ceil(max(1, wait.Seconds())))),
		body: postgrest.NewError("429", "API rate limit exceeded", "rate_limited", "slow down")}
}
