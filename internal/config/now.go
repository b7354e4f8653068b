package config

import (
	"errors"
	"fmt"

	"github.com/tendril-run/tendril/internal/secretfile"
)

// URLNow is URL, read again from its file if it came from one: a password may
// have been changed since. For a URL of Postgres only; errors show nothing of it.
func (q Queue) URLNow() (string, error) { return postgresNow("queue.url", q.URL, q.from.url) }

// ListenURLNow is to ListenURL what URLNow is to URL.
func (q Queue) ListenURLNow() (string, error) {
	return postgresNow("queue.listen_url", q.ListenURL, q.from.listenURL)
}

func postgresNow(name, loaded, file string) (string, error) {
	if file == "" {
		return loaded, nil
	}
	text, err := readURL(file, "postgres://USER:PASSWORD@HOST/DATABASE")
	switch {
	case err != nil:
	case !postgresURL(text):
		err = errors.New("must hold postgres://USER:PASSWORD@HOST/DATABASE, as it did; for another way to the queue restart the agent")
	case misread(text):
		err = errors.New(unencoded)
	default:
		return text, nil
	}
	return "", fmt.Errorf("%s_file = %q: %w", name, file, err)
}

// TokenNow is Token, read again from its file if it came from one. Errors show
// nothing of it.
func (q Queue) TokenNow() (Secret, error) {
	if q.from.token == "" {
		return q.Token, nil
	}
	text, err := secretfile.Read(q.from.token)
	if err == nil {
		text, err = tokenIn(text)
	}
	if err != nil {
		return Secret{}, fmt.Errorf("queue.token_file = %q: %w", q.from.token, err)
	}
	return NewSecret(text), nil
}
