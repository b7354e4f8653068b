package sql_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// calls are one call of each function in public that would do something, by
// somebody who may, and a deploy.
func (s *scene) calls() map[string]func(tx pgx.Tx) error {
	all := map[string]func(tx pgx.Tx) error{
		"a deploy": func(tx pgx.Tx) error {
			_, err := tx.Exec(context.Background(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", s.cluster, snapshot("queued"))
			return err
		},
	}
	for name, f := range functions {
		query, args := "SELECT public."+name+"(%s)", []any{}
		switch f := f.(type) {
		case forAgents:
			args = append([]any{s.tokenHash}, f.args(s)...)
		case forPeople:
			args = append(args, f.of(s))
			if f.rest != nil {
				args = append(args, f.rest(s)...)
			}
			if f.query != "" {
				query = f.query
			}
		case forOneself:
			args = append(args, f.args(s)...)
		case forAdmins:
			args = append(args, f.args...)
		case forJoiners:
			args = append(args, f.args...)
		case forThePlatform:
			args = append(args, "new", uuid.New())
		}
		list := make([]string, len(args))
		for i := range args {
			list[i] = fmt.Sprintf("$%d", i+1)
		}
		if strings.Contains(query, "%s") {
			query = fmt.Sprintf(query, strings.Join(list, ", "))
		}
		_, joins := functions[name].(forJoiners)
		all[name] = func(tx pgx.Tx) error {
			if joins {
				if _, err := tx.Exec(context.Background(), signedByAnyone); err != nil {
					return err
				}
			}
			_, err := tx.Exec(context.Background(), query, args...)
			return err
		}
	}
	return all
}

// caller is who makes such a call.
func (s *scene) caller(name string) actor {
	switch functions[name].(type) {
	case forAgents, forJoiners:
		return actor{name: "anon", role: "anon"}
	case forThePlatform:
		return actor{name: "owner", role: "none"}
	default:
		return actor{name: "admin", role: "authenticated", claims: fmt.Sprintf(`{"sub": %q}`, s.adminID)}
	}
}

// functionsWorkThere calls every function where the role that has migrated, and
// so owns them, may be no superuser.
func functionsWorkThere(t *testing.T, url string) {
	t.Helper()
	s := newScene(t, open(t, url))
	for name, call := range s.calls() {
		s.wantAnswer(t, s.caller(name), name, s.attempt(t, s.caller(name), call), "ok")
	}
}

// Who meets the lock of a row is told within two seconds to try again, by PT503 and
// nothing else.
func TestWhoWaitsIsToldToTryAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	s := newScene(t, db.Conn(t))
	if got := one[string](t, s.conn, `SELECT coalesce(string_agg(p.oid::regprocedure::text, ', '), '') FROM pg_proc p
		WHERE (p.pronamespace = 'public'::regnamespace OR p.oid = 'tendril.accept_deploy'::regproc) AND NOT coalesce(p.proconfig @> ARRAY['lock_timeout=2s'], false)`); got != "" {
		t.Errorf("functions without lock_timeout = 2s: %s", got)
	}
	// What is locked below is not what each of them waits for, so their handlers are read.
	if got := one[string](t, s.conn, `SELECT coalesce(string_agg(p.oid::regprocedure::text, ', '), '') FROM pg_proc p
		WHERE p.pronamespace = 'public'::regnamespace AND p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'plpgsql') AND p.proconfig @> ARRAY['lock_timeout=2s']
		AND p.prosrc !~ $$WHEN [a-z_ OR]*lock_not_available[a-z_ OR]* THEN\s+PERFORM tendril\.refuse\('PT503', 'busy'$$ AND p.prosrc !~ 'RETURN public\.' -- another's handler`); got != "" {
		t.Errorf("functions that do not refuse as busy when a lock is not to be had: %s", got)
	}
	// Shorter, for a test.
	lockTimeout(t, s.conn, "10ms")
	const list = "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class WHERE relnamespace IN ('public'::regnamespace, 'tendril'::regnamespace) AND relkind = 'r'"
	every := one[string](t, s.conn, list)
	// An INSERT waits for its own table before any function of ours is called.
	butProvisions := one[string](t, s.conn, list+" AND relname <> 'provisions'")
	for name, call := range s.calls() {
		lock := every
		if name == "a deploy" {
			lock = butProvisions
		}
		other := db.Conn(t)
		mustExec(t, other, "BEGIN; LOCK TABLE "+lock+" IN ACCESS EXCLUSIVE MODE")
		a := s.caller(name)
		// A function with a variable of a table's type looks the table up before any
		// handler of its own is in force, unless its session has it at hand. Only a
		// migration locks like this, and 55P03 says the same to agents and to trellis.
		if err := s.attempt(t, a, call); answerOf(err) != "55P03" {
			s.wantAnswer(t, a, name+", the tables locked", err, "PT503 busy")
		}
		// Of the rows not everybody needs one; who does is told the same.
		mustExec(t, other, "ROLLBACK; BEGIN")
		for _, table := range strings.Split(every, ", ") {
			mustExec(t, other, "SELECT FROM "+table+" FOR UPDATE")
		}
		if err := s.attempt(t, a, call); err != nil {
			s.wantAnswer(t, a, name+", the rows locked", err, "PT503 busy")
		}
		mustExec(t, other, "ROLLBACK")
		s.wantAnswer(t, a, name+", nothing locked", s.attempt(t, a, call), "ok")
	}
}
