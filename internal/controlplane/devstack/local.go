package devstack

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
)

// forgetLimit bounds what is told to the database at the end.
const forgetLimit = 3 * time.Second

// beginLocal names the local user and gives the CLI a token of theirs. One that
// was killed has left its own behind, which ends now.
func (s *Stack) beginLocal(ctx context.Context) (err error) {
	if err := signin.Name(ctx, s.site.Database(), instance.LocalUser, "Local user"); err != nil {
		return err
	}
	host, _ := os.Hostname() // for people, who see "" then
	s.apiToken, err = signin.NewToken(ctx, s.site.Database(), instance.LocalUser, fmt.Sprintf("trellis up on %s, %s", host, s.options.DataDir))
	return err
}

// endLocal revokes the CLI's token. A private server that has gone will have it
// revoked at the next start.
func (s *Stack) endLocal(ctx context.Context) error {
	if s.apiToken == "" || s.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetLimit)
	defer cancel()
	return signin.EndToken(ctx, s.site.Database(), s.apiToken)
}

// Link makes a one-time link that signs a browser in as the local user.
func (s *Stack) Link(ctx context.Context) (string, error) {
	return signin.NewLink(ctx, s.site.Database(), s.runtime.BrowserURL, instance.LocalUser)
}
