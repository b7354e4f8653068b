package devstack

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
)

// login is the role that the local agent connects as: it may call the agent
// functions and nothing else. Roles belong to the server, hence a name of this
// data directory's own.
type login struct {
	Role     string `json:"role"`
	Password string `json:"password"`
}

// ensureLogin reads the login from the file, or makes one, and sees to it that
// the database knows it. The file comes first, so that no crash leaves a role
// whose password nobody knows.
func ensureLogin(ctx context.Context, db *pgxpool.Pool, file string) (login, error) {
	l, err := readLogin(file)
	if err != nil {
		return login{}, err
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var there, member bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", l.Role).Scan(&there); err != nil {
			return err
		}
		verifier, err := scramVerifier(l.Password)
		if err != nil {
			return err
		}
		// Utility statements take no parameters; both parts are of our own making.
		role := pgx.Identifier{l.Role}.Sanitize()
		statement := "CREATE ROLE " + role + " LOGIN IN ROLE tendril_agent PASSWORD '" + verifier + "'"
		if there {
			statement = "ALTER ROLE " + role + " LOGIN PASSWORD '" + verifier + "'"
		}
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "SELECT pg_has_role($1, 'tendril_agent', 'MEMBER')", l.Role).Scan(&member); err != nil {
			return err
		}
		if !member {
			if _, err := tx.Exec(ctx, "GRANT tendril_agent TO "+role); err != nil {
				return err
			}
		}
		if _, err = tx.Exec(ctx, "ALTER ROLE "+role+" SET statement_timeout = '15s'"); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "SELECT FROM tendril.close_to_agents()")
		return err
	})
	if err != nil {
		return login{}, fmt.Errorf("make the role that the agent logs in as: %w", err)
	}
	return l, nil
}

func readLogin(file string) (login, error) {
	var l login
	content, err := os.ReadFile(file)
	switch {
	case err == nil:
		if err := json.Unmarshal(content, &l); err != nil || l.Role == "" || l.Password == "" {
			return login{}, fmt.Errorf("%s is damaged: remove it, and a new login is made", file)
		}
		return l, nil
	case !errors.Is(err, fs.ErrNotExist):
		return login{}, fmt.Errorf("read the agent's login: %w", err)
	}
	l = login{Role: "tendril_agent_" + strings.ToLower(rand.Text()[:10]), Password: rand.Text()}
	if content, err = json.Marshal(l); err == nil { //nolint:gosec // into a 0600 file, which is its place
		err = instance.WriteSecret(file, append(content, '\n'))
	}
	if err != nil {
		return login{}, fmt.Errorf("keep the agent's login: %w", err)
	}
	return l, nil
}

// scramVerifier is what PostgreSQL stores for a password of ASCII characters
// (RFC 5803, as in pg_authid.rolpassword). Sent in its place, the password
// stays out of the server's log.
func scramVerifier(password string) (string, error) {
	const rounds = 4096 // PostgreSQL's own
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, rounds, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("derive the password's verifier: %w", err)
	}
	sign := func(text string) []byte {
		mac := hmac.New(sha256.New, salted)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(sign("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", rounds, encode(salt), encode(stored[:]), encode(sign("Server Key"))), nil
}

// url is the database's URL with this login in place of the owner's.
func (l login) url(database string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", errors.New("the database's URL cannot be parsed") // the cause would quote the password
	}
	query := u.Query()
	query.Del("user")
	query.Del("password")
	// Not the "+" that forms have for a blank: libpq takes it as it is.
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	u.User = url.UserPassword(l.Role, l.Password)
	return u.String(), nil
}
