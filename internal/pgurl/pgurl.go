// Package pgurl makes connections to a PostgreSQL whose URL may change while the
// program runs: a password is replaced in a mounted file, and the next connection
// is to have it, without a restart and without those that are open being touched.
//
// It must not know where a URL stands, nor what is done with a connection.
package pgurl

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Source tells the URL as it is now. It is called before each connection, from
// any goroutine, and soon returns. Its errors must not show what a URL has in it.
type Source func() (string, error)

// Renew has a connection made as the URL says now, for pgxpool's BeforeConnect;
// nil for a nil source, which changes nothing. What counts of the URL is where the
// server is and as whom: hosts, ports, user, password and what belongs to TLS. The
// files that it names (passfile, sslrootcert, sslcert, sslkey) are read again as
// well. The database stays what it was, for half of a program must not work on
// another one, and so do all other parameters.
func Renew(now Source) func(context.Context, *pgx.ConnConfig) error {
	if now == nil {
		return nil
	}
	return func(_ context.Context, config *pgx.ConnConfig) error {
		url, err := now()
		if err != nil {
			return fmt.Errorf("read the database's URL again: %w", err)
		}
		fresh, err := pgx.ParseConfig(url)
		if err != nil {
			return fmt.Errorf("database URL: %w", err) // pgx redacts the password in this error
		}
		config.Host, config.Port, config.User, config.Password = fresh.Host, fresh.Port, fresh.User, fresh.Password
		config.TLSConfig, config.Fallbacks, config.ValidateConnect = fresh.TLSConfig, fresh.Fallbacks, fresh.ValidateConnect
		config.SSLNegotiation, config.SSLCertMode = fresh.SSLNegotiation, fresh.SSLCertMode
		config.ChannelBinding, config.RequireAuth = fresh.ChannelBinding, fresh.RequireAuth
		return nil
	}
}

// Connect makes one connection, as Renew has a pool make them. config stays as it
// is.
func Connect(ctx context.Context, config *pgx.ConnConfig, now Source) (*pgx.Conn, error) {
	if renew := Renew(now); renew != nil {
		config = config.Copy()
		if err := renew(ctx, config); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, config)
}
