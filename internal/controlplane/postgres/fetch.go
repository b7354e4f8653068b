package postgres

import (
	"context"
	"errors"
)

func fetch(ctx context.Context, o Options, into string, major int) (string, error) {
	return "", errors.New("TODO")
}
