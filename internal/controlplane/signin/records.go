package signin

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// Kinds of what is shown, as tendril.credentials has them.
const (
	session  = "session"
	apiToken = "api_token"
	link     = "link"
)

// codeLasts is how long a CLI's code waits: a browser brings it at once.
const codeLasts = 2 * time.Minute

// linkLasts is how long a one-time link waits for its use.
const linkLasts = 15 * time.Minute

// newSecret is 130 random bits.
func newSecret() string { return rand.Text() }

// records are what the database knows of who asks.
type records struct{ database *store.Database }

// find returns whose a session or an API token is; nobody's, also when it has
// ended.
func (d records) find(ctx context.Context, kind, secret string) (f found, err error) {
	p := &f.person
	err = d.database.OwnerAsks(ctx, "find out who asks", "SELECT credential_id, user_id, name, email, powers, coalesce(audience, '') FROM tendril.find_person($1, $2)",
		[]any{kind, digest(secret)}, &f.credential, &p.ID, &p.Name, &p.Email, &p.Powers, &p.Audience)
	if errors.Is(err, pgx.ErrNoRows) {
		return found{}, nil
	}
	p.Browser, p.Token, f.ok = kind == session, kind == apiToken, err == nil
	if p.Token {
		p.TokenID = f.credential
	}
	return f, err
}

// storable is a text from outside as the database takes it: browsers and issuers
// may send anything.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}

// ended returns those of the sessions and tokens that do not count any more.
func (d records) ended(ctx context.Context, of []uuid.UUID) (ended []uuid.UUID, err error) {
	err = d.database.OwnerAsks(ctx, "look which sessions have ended", "SELECT tendril.ended_credentials($1)", []any{of}, &ended)
	return ended, err
}

// redeemLink uses a one-time link up and opens a session for whose it was; false:
// nobody's, or used, or too old.
func (d records) redeemLink(ctx context.Context, link, opened []byte, label string) (ok bool, err error) {
	err = d.database.AsOwner(ctx, "use the one-time link", func(ctx context.Context, tx pgx.Tx) error {
		var user *uuid.UUID
		if err := tx.QueryRow(ctx, "SELECT user_id FROM tendril.redeem('link', $1)", link).Scan(&user); err != nil || user == nil {
			return err
		}
		ok = true
		_, err := tx.Exec(ctx, "SELECT tendril.add_credential('session', $1, $2, NULL, $3)", user, opened, storable(label))
		return err
	})
	return ok && err == nil, err
}

// addCode keeps a CLI's code.
func (d records) addCode(ctx context.Context, user uuid.UUID, code []byte, challenge, host string) error {
	return d.database.OwnerDoes(ctx, "let a CLI in", "SELECT tendril.add_credential('cli_code', $1, $2, $3, $4, $5)", user, code, codeLasts, host, challenge)
}

// redeemCode uses a CLI's code up and makes it a token; false: the code is
// nobody's, or used, or too old, or the verifier is another's.
func (d records) redeemCode(ctx context.Context, code []byte, verifier string) (made wire.CliToken, ok bool, err error) {
	err = d.database.AsOwner(ctx, "use a CLI's code", func(ctx context.Context, tx pgx.Tx) error {
		var user *uuid.UUID
		var host *string
		if err := tx.QueryRow(ctx, "SELECT user_id, label FROM tendril.redeem('cli_code', $1, $2)", code, verifier).Scan(&user, &host); err != nil || user == nil {
			return err
		}
		ok = true
		return tx.QueryRow(ctx, `SELECT t.token, now() + $3, p.user_id, coalesce(n.name, ''), coalesce(n.email, '')
			FROM (SELECT $1::uuid AS user_id) p LEFT JOIN tendril.persons n USING (user_id),
			     tendril.issue_api_token($1, btrim('trellis on ' || $2), $3) t`, user, host, tokenLasts).
			Scan(&made.Token, &made.ExpiresAt, &made.User.ID, &made.User.Name, &made.User.Email)
	})
	return made, ok && err == nil, err
}

// grant is what a token may do that a code is changed for, what for, and by whom.
type grant struct {
	Powers   *person.Powers `json:"powers"`
	Audience string         `json:"audience"`
	Client   string         `json:"client"`
}

// addGrant keeps a code that an OAuth client gets.
func (d records) addGrant(ctx context.Context, user uuid.UUID, code []byte, challenge, name string, given grant) error {
	return d.database.OwnerDoes(ctx, "let a client in", "SELECT tendril.add_credential('oauth_code', $1, $2, $3, $4, $5, $6)", user, code, codeLasts, storable(name), challenge, given)
}

// redeemGrant uses such a code up, and makes the client that it was given to a token of it; false:
// the code is nobody's, or used, or too old, or the verifier or the client is another's.
func (d records) redeemGrant(ctx context.Context, code []byte, verifier, client string) (token string, ok bool, err error) {
	err = d.database.AsOwner(ctx, "use a client's code", func(ctx context.Context, tx pgx.Tx) error {
		var user *uuid.UUID
		var name *string
		var given *grant
		if err := tx.QueryRow(ctx, "SELECT user_id, label, given FROM tendril.redeem('oauth_code', $1, $2)", code, verifier).Scan(&user, &name, &given); err != nil || user == nil || given == nil || given.Client != client {
			return err
		}
		ok = true
		return tx.QueryRow(ctx, "SELECT token FROM tendril.issue_api_token($1, $2, $3, $4)", user, name, grantLasts, given).Scan(&token)
	})
	return token, ok && err == nil, err
}

// open opens a session.
func (d records) open(ctx context.Context, user uuid.UUID, opened []byte, label string) error {
	return d.database.OwnerDoes(ctx, "open a session", "SELECT tendril.add_credential('session', $1, $2, NULL, $3)", user, opened, storable(label))
}

// signIn finds, or makes, the person whom an issuer names.
func (d records) signIn(ctx context.Context, c claims, firstAdmin string) (user uuid.UUID, err error) {
	err = d.database.OwnerAsks(ctx, "sign in", "SELECT tendril.sign_in($1, $2, $3, $4, $5, $6, $7)",
		[]any{c.Issuer, c.Subject, storable(c.Name), storable(c.Email), c.Verified, firstAdmin, c.User}, &user)
	return user, err
}

// identified returns the person whom a JWT names, who may be new here.
func (d records) identified(ctx context.Context, c claims) (p person.Person, err error) {
	err = d.database.OwnerAsks(ctx, "find out who asks", "SELECT user_id, name, email FROM tendril.find_identity($1, $2)", []any{c.Issuer, c.Subject}, &p.ID, &p.Name, &p.Email)
	if !errors.Is(err, pgx.ErrNoRows) {
		return p, err
	}
	p.Name, p.Email = c.Name, c.Email
	p.ID, err = d.signIn(ctx, c, "") // nobody becomes admin by a program
	return p, err
}

func (d records) end(ctx context.Context, digest []byte) error {
	return d.database.OwnerDoes(ctx, "end the session", "SELECT tendril.end_credential($1)", digest)
}

// NewLink makes a one-time link that signs a browser in as a person: publicURL is
// how it reaches the server. Whoever opens the database as its owner may.
func NewLink(ctx context.Context, database *store.Database, publicURL string, user uuid.UUID) (string, error) {
	secret := newSecret()
	err := database.OwnerDoes(ctx, "make a one-time link", "SELECT tendril.add_credential('link', $1, $2, $3, '')", user, digest(secret), linkLasts)
	return publicURL + "/signin/link?code=" + secret, err
}

// Name keeps what a person is called who has no issuer to say it.
func Name(ctx context.Context, database *store.Database, user uuid.UUID, name string) error {
	return database.OwnerDoes(ctx, "keep a person's name", "SELECT tendril.name_person($1, $2, '', false)", user, name)
}

// NewToken makes an API token that lasts until it is revoked, and revokes those
// of the same person and name: there is one at a time.
func NewToken(ctx context.Context, database *store.Database, user uuid.UUID, name string) (token string, err error) {
	err = database.AsOwner(ctx, "make an API token", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE tendril.credentials SET revoked_at = clock_timestamp()
			WHERE user_id = $1 AND kind = 'api_token' AND label = $2 AND revoked_at IS NULL`, user, name); err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT token FROM tendril.issue_api_token($1, $2, NULL)", user, name).Scan(&token)
	})
	return token, err
}

// EndToken revokes an API token.
func EndToken(ctx context.Context, database *store.Database, token string) error {
	return records{database}.end(ctx, digest(token))
}
