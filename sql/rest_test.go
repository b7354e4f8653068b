package sql_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rest answers for tables as PostgREST does, as far as the documented snippets
// go: equality, gt, order and limit; an INSERT of one row that is returned; and
// for functions that take texts and numbers and answer one value, or rows.
type rest struct {
	pool    *pgxpool.Pool
	user    uuid.UUID
	maxRows int         // however many are asked for
	failing atomic.Bool // the next request is answered with 503
}

// ServeHTTP implements http.Handler.
func (s *rest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.failing.CompareAndSwap(true, false) {
		http.Error(w, `{"message": "no connection"}`, http.StatusServiceUnavailable)
		return
	}
	query, args, err := s.statement(r)
	var rows []json.RawMessage
	if err == nil {
		rows, err = s.run(r.Context(), query, args)
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		s.answer(w, http.StatusBadRequest, map[string]string{"code": pg.Code, "message": pg.Message, "details": pg.Detail, "hint": pg.Hint})
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/rpc/") && r.URL.Path != "/rpc/provision_log" {
		s.answer(w, http.StatusOK, rows[0])
	} else if !strings.Contains(r.Header.Get("Accept"), "pgrst.object") {
		s.answer(w, http.StatusOK, rows)
	} else if len(rows) != 1 {
		s.answer(w, http.StatusNotAcceptable, map[string]string{"code": "PGRST116", "message": "not one row"})
	} else {
		s.answer(w, http.StatusOK, rows[0])
	}
}

func (s *rest) answer(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // the client has gone
}

// statement puts a request into SQL.
func (s *rest) statement(r *http.Request) (query string, args []any, err error) {
	if name, ok := strings.CutPrefix(r.URL.Path, "/rpc/"); ok {
		var given map[string]any
		if err := json.NewDecoder(r.Body).Decode(&given); err != nil {
			return "", nil, err
		}
		var list []string
		for name, value := range given {
			args = append(args, value)
			if limit, ok := value.(float64); ok && name == "p_limit" {
				args[len(args)-1] = min(int(limit), s.maxRows)
			}
			list = append(list, fmt.Sprintf("%s => $%d", pgx.Identifier{name}.Sanitize(), len(args)))
		}
		return fmt.Sprintf("SELECT to_json(public.%s(%s))", pgx.Identifier{name}.Sanitize(), strings.Join(list, ", ")), args, nil
	}
	table := "public." + pgx.Identifier{strings.TrimPrefix(r.URL.Path, "/")}.Sanitize()
	columns := r.URL.Query().Get("select")
	if r.Method == http.MethodPost {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return "", nil, err
		}
		var row map[string]json.RawMessage
		if err := json.Unmarshal(body, &row); err != nil {
			return "", nil, err
		}
		var names []string
		for name := range row {
			names = append(names, pgx.Identifier{name}.Sanitize())
		}
		list := strings.Join(names, ", ")
		return fmt.Sprintf("WITH x AS (INSERT INTO %s (%s) SELECT %s FROM json_populate_record(NULL::%s, $1) RETURNING %s) SELECT to_json(x) FROM x", table, list, list, table, columns),
			[]any{string(body)}, nil
	}
	conditions, order := []string{"true"}, ""
	for name, values := range r.URL.Query() {
		operator, value, _ := strings.Cut(values[0], ".")
		switch {
		case name == "order":
			order = " ORDER BY " + pgx.Identifier{operator}.Sanitize()
		case operator == "eq" || operator == "gt":
			args = append(args, value)
			sign := map[string]string{"eq": "=", "gt": ">"}[operator]
			conditions = append(conditions, fmt.Sprintf("%s %s (SELECT v FROM json_populate_record(NULL::%s, json_build_object(%s, $%d::text)) r, LATERAL (SELECT r.%s) x (v))",
				pgx.Identifier{name}.Sanitize(), sign, table, "'"+name+"'", len(args), pgx.Identifier{name}.Sanitize()))
		}
	}
	return fmt.Sprintf("SELECT to_json(x) FROM (SELECT %s FROM %s WHERE %s%s LIMIT %d) x", columns, table, strings.Join(conditions, " AND "), order, s.maxRows), args, nil
}

// run runs it as the signed-in person.
func (s *rest) run(ctx context.Context, query string, args []any) (rows []json.RawMessage, err error) {
	rows = []json.RawMessage{}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT set_config('request.jwt.claims', $1, true), set_config('role', 'authenticated', true)", fmt.Sprintf(`{"sub": %q}`, s.user))
		if err != nil {
			return err
		}
		found, err := tx.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		rows, err = pgx.AppendRows(rows, found, pgx.RowTo[json.RawMessage])
		return err
	})
	return rows, err
}
