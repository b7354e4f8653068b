// Package owner does what only the owner of a database can do, before anybody can sign
// in at a server or when nobody can: the first admin, an API token, a sign-in link. It
// opens the database and asks no server.
//
// Its errors are those of package problem. It must not know how people see the answer.
package owner

import (
	"context"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// Init makes the first organisation of a migrated database, with user as its admin, who
// is called name. Where there is an organisation it changes nothing, and says so.
func Init(ctx context.Context, url string, user uuid.UUID, name string) (made bool, err error) {
	_, err = with(ctx, url, func(d *store.Database) (_ string, err error) {
		if made, err = d.Bootstrap(ctx, user); made {
			err = signin.Name(ctx, d, user, name)
		}
		return "", err
	})
	return made, err
}

// Token makes an API token of user; one of that name ends.
func Token(ctx context.Context, url string, user uuid.UUID, name string) (string, error) {
	return with(ctx, url, func(d *store.Database) (string, error) { return signin.NewToken(ctx, d, user, name) })
}

// Link makes a one-time link that signs a browser in as user, at the server that it
// reaches by publicURL.
func Link(ctx context.Context, url, publicURL string, user uuid.UUID) (string, error) {
	return with(ctx, url, func(d *store.Database) (string, error) { return signin.NewLink(ctx, d, publicURL, user) })
}

func with(ctx context.Context, url string, do func(*store.Database) (string, error)) (string, error) {
	d, err := store.Connect(ctx, url, 1)
	if err != nil {
		return "", err
	}
	defer d.Close()
	return do(d)
}
