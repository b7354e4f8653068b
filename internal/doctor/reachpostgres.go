package doctor

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// reachPostgres connects, and closes again.
func (d *doctor) reachPostgres(ctx context.Context) verdict {
	config, err := pgx.ParseConfig(d.Config.Queue.URL)
	if err != nil {
		return fail("correct queue.url", "queue.url cannot be read: %v", err) // pgx redacts the password
	}
	host := hostPort(config.Host, config.Port)
	config.ConnectTimeout = each - time.Second // so that there is time to say so
	var connected atomic.Bool
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		connected.Store(connected.Load() || err == nil)
		return conn, err
	}
	began := time.Now()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		if connected.Load() && errors.Is(err, context.DeadlineExceeded) {
			return fail("check that a PostgreSQL server listens there, and how it does", "Postgres: %s takes the connection and does not answer in time", host)
		}
		return postgresRefused(host, config, err)
	}
	took := since(began)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	_, encrypted := conn.PgConn().Conn().(interface{ HandshakeContext(context.Context) error })
	server := conn.PgConn().ParameterStatus("server_version")
	_ = conn.Close(closing) // nothing was asked of it
	if !encrypted && overNetwork(config.Host) {
		return warn("add sslmode=verify-full to queue.url", "%s answers within %s (PostgreSQL %s), but the connection is not encrypted", host, took, server)
	}
	return ok("%s answers within %s (PostgreSQL %s)", host, took, server)
}

func postgresRefused(host string, config *pgx.ConnConfig, err error) verdict {
	if pg, answered := errors.AsType[*pgconn.PgError](err); answered {
		switch {
		case strings.HasPrefix(pg.Code, "28"):
			return fail("check the user and password in queue.url", "Postgres: %s lets user %q not in: %s", host, config.User, pg.Message)
		case pg.Code == "3D000":
			return fail("check the database's name in queue.url", "Postgres: %s has no database %q", host, config.Database)
		case pg.Code == "53300":
			return fail("raise max_connections, or put a pooler in front", "Postgres: %s has no connection left: %s", host, pg.Message)
		case pg.Code == "57P03":
			return fail("wait a moment and try again", "Postgres: %s is starting or stopping: %s", host, pg.Message)
		case strings.Contains(pg.Message, "unsupported startup parameter"):
			return fail("remove it from queue.url and set it on the role, by ALTER ROLE … SET", "Postgres: the pooler at %s refuses what queue.url sets: %s", host, pg.Message)
		}
		return fail("see the server's log", "Postgres: %s refuses the connection: %s (SQLSTATE %s)", host, pg.Message, pg.Code)
	}
	if v, is := unreached(host, err); is {
		return v
	}
	if strings.Contains(err.Error(), "server refused TLS connection") {
		return fail("switch TLS on there, or set another sslmode in queue.url", "TLS: %s does not offer it", host)
	}
	return fail("check that a PostgreSQL server listens there", "Postgres: what %s answers is not PostgreSQL's: %v", host, lastError(err))
}

// lastError is the innermost one: the outer ones name host and user again.
func lastError(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

func overNetwork(host string) bool {
	return !strings.HasPrefix(host, "/") && host != "localhost" && host != "::1" && !strings.HasPrefix(host, "127.")
}
