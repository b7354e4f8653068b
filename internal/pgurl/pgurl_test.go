package pgurl_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/pgurl"
)

func TestRenew(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig("postgres://old:first@old.example:5433/tendril?sslmode=disable&search_path=x")
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["application_name"] = "test"
	now := "postgres://new:second@new.example,other.example:6543/elsewhere?sslmode=verify-full&search_path=y&target_session_attrs=read-write"
	if err := pgurl.Renew(func() (string, error) { return now, nil })(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if config.User != "new" || config.Password != "second" || config.Host != "new.example" || config.ValidateConnect == nil {
		t.Errorf("it goes to %s@%s, want who and where the URL says now", config.User, config.Host)
	}
	if config.TLSConfig == nil || config.TLSConfig.ServerName != "new.example" || len(config.Fallbacks) != 1 || config.Fallbacks[0].Host != "other.example" || config.Fallbacks[0].Port != 6543 {
		t.Errorf("TLS %v, other hosts %v, want those of the URL as it is now", config.TLSConfig, config.Fallbacks)
	}
	if config.Database != "tendril" || config.RuntimeParams["search_path"] != "x" || config.RuntimeParams["application_name"] != "test" {
		t.Errorf("database %s, parameters %v, want them as they were", config.Database, config.RuntimeParams)
	}
}

// What a URL names is read again, too.
func TestRenewReadsThePassfile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pass")
	url := "postgres://me@db.example/tendril?sslmode=disable&passfile=" + file
	write := func(password string) {
		if err := os.WriteFile(file, []byte("db.example:5432:tendril:me:"+password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	config, err := pgx.ParseConfig(url)
	if err != nil || config.Password != "first" {
		t.Fatalf("ParseConfig() = %v, %v", config, err)
	}
	write("second")
	if err := pgurl.Renew(func() (string, error) { return url, nil })(t.Context(), config); err != nil || config.Password != "second" {
		t.Errorf("Renew() = %v, with the password %q, want the one that is in the file now", err, config.Password)
	}
}

// What cannot be had changes nothing, and the error shows no password.
func TestRenewRefuses(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{"": "no such file", "postgres://me:s3cret@db.example:x/y": "database URL"} {
		config, err := pgx.ParseConfig("postgres://me:first@127.0.0.1:1/none")
		if err != nil {
			t.Fatal(err)
		}
		_, err = pgurl.Connect(t.Context(), config, func() (string, error) {
			if url == "" {
				return "", errors.New("no such file")
			}
			return url, nil
		})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("Connect() = %v, want an error with %q and without the password", err, want)
		}
	}
}
