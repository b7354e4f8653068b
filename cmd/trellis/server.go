package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/contexts"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/version"
)

const (
	urlEnv       = "TRELLIS_URL"
	tokenEnv     = "TRELLIS_TOKEN"
	tokenFileEnv = "TRELLIS_TOKEN_FILE"
	orgEnv       = "TRELLIS_ORG"
	caFileEnv    = "TRELLIS_CA_FILE"
)

// mostToken bounds a file with a token.
const mostToken = 64 << 10

// target is a server, who asks there, and how it came to be chosen.
type target struct {
	client.Options
	local bool // it is trellis up of the data directory
	// database is that of a local one, to tell whether another was meant.
	database string
}

// chosenTarget is the server that is asked: by --server or --context, by the environment, by a
// data directory that was named, by the current context; else it is what trellis
// up runs.
func chosenTarget(a *app, cmd *cobra.Command) (target, error) {
	if cmd.Flags().Changed("database-url") || cmd.Flags().Changed("database-url-file") {
		return target{}, wrongUsage("--database-url is for up, serve, migrate, gc, link and admin; this asks a server, as you: trellis login URL")
	}
	t, err := chooseTarget(a, cmd)
	if err != nil {
		return target{}, err
	}
	t.Org = cmp.Or(a.org, a.getenv(orgEnv), t.Org)
	t.CAFile = cmp.Or(a.getenv(caFileEnv), t.CAFile)
	t.Version = version.String()
	return t, nil
}

func chooseTarget(a *app, cmd *cobra.Command) (target, error) {
	server := cmp.Or(a.server, a.getenv(urlEnv))
	switch {
	case a.server != "" && a.context != "":
		return target{}, wrongUsage("--server and --context: give one of them")
	case a.context == contexts.Local:
		return localTarget(a)
	case a.context != "":
		return namedTarget(a, a.context)
	case server != "":
		return serverTarget(a, server)
	case cmd.Flags().Changed("data-dir") || a.getenv("TRELLIS_DATA_DIR") != "":
		return localTarget(a)
	}
	kept, err := contexts.Load(contexts.Path(a.getenv))
	if err != nil {
		return target{}, err
	}
	if kept.Current != "" && kept.Current != contexts.Local {
		return namedTarget(a, kept.Current)
	}
	given, wrong := databaseOfEnvironment(a)
	if wrong != nil {
		return target{}, wrong
	}
	t, err := localTarget(a)
	if given != "" && (err != nil || given != t.database) {
		return target{}, wrongUsage("%s is for up, serve, migrate, gc, link and admin; this asks a server, as you: trellis login URL", databaseSource(a))
	}
	return t, err
}

func namedTarget(a *app, name string) (target, error) {
	kept, err := contexts.Load(contexts.Path(a.getenv))
	if err != nil {
		return target{}, err
	}
	c, err := kept.Find(name)
	if err != nil {
		return target{}, err
	}
	return target{Options: client.Options{URL: c.URL, Token: c.Token, Org: c.Org, CAFile: c.CAFile}}, nil
}

// serverTarget is a server by its URL. Without a token in the environment, one
// of a context that has this very URL will do.
func serverTarget(a *app, server string) (target, error) {
	if _, err := client.ParseURL(server); err != nil {
		return target{}, wrongUsage("%v", err)
	}
	token, err := givenToken(a)
	if err != nil || token != "" {
		from := tokenFileEnv
		if a.getenv(tokenEnv) != "" {
			from = tokenEnv
		}
		return target{Options: client.Options{URL: server, Token: token, From: from}}, err
	}
	kept, err := contexts.Load(contexts.Path(a.getenv))
	if err != nil {
		return target{}, err
	}
	for _, name := range append([]string{kept.Current}, kept.Names()...) {
		if c, ok := kept.Contexts[name]; ok && sameServer(c.URL, server) {
			return namedTarget(a, name)
		}
	}
	return target{}, fmt.Errorf("you are not logged in to %s: trellis login %s, or set %s (or %s)", server, server, tokenEnv, tokenFileEnv)
}

func sameServer(one, other string) bool {
	a, errA := client.ParseURL(one)
	b, errB := client.ParseURL(other)
	return errA == nil && errB == nil && strings.EqualFold(a.Host, b.Host) && a.Scheme == b.Scheme && a.Path == b.Path
}

// givenToken is the token that the environment has, "" for none.
func givenToken(a *app) (string, error) {
	if token := a.getenv(tokenEnv); token != "" {
		return token, nil
	}
	name := a.getenv(tokenFileEnv)
	if name == "" {
		return "", nil
	}
	file, err := os.Open(filepath.Clean(name))
	if err != nil {
		return "", fmt.Errorf("%s: %w", tokenFileEnv, err)
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil || info.Mode().IsRegular() && info.Mode().Perm()&0o007 != 0 {
		return "", fmt.Errorf("%s: everybody on this machine may read %s: nothing is read from it (chmod o-rwx)", tokenFileEnv, name)
	}
	return readToken(tokenFileEnv, file)
}

// readToken reads a token, and tells nothing of what is no token.
func readToken(from string, r io.Reader) (string, error) {
	data, err := io.ReadAll(io.LimitReader(r, mostToken))
	token := strings.TrimSpace(string(data))
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: read the token: %w", from, err)
	case token == "":
		return "", fmt.Errorf("%s: there is no token in it", from)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("%s: what is in it is no token", from)
	}
	return token, nil
}

// localTarget is what trellis up runs on the data directory.
func localTarget(a *app) (target, error) {
	runtime, err := instance.ReadRuntime(a.dataDir)
	if err != nil {
		return target{}, err
	}
	return targetOf(runtime), nil
}

func targetOf(runtime instance.Runtime) target {
	return target{
		Options: client.Options{URL: runtime.URL, Token: runtime.APIToken, Version: version.String()},
		local:   true, database: runtime.DatabaseURL,
	}
}

// untilInterrupted runs a part with a context that Ctrl-C ends.
func untilInterrupted(a *app, cmd *cobra.Command, do func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return do(ctx)
}

// unknownToken reports whether the server does not know the token (any more).
func unknownToken(err error) bool {
	refused, ok := errors.AsType[*problem.RefusedError](err)
	return ok && refused.Status() == http.StatusUnauthorized
}

// withServer runs a verb with the server that was chosen and a context that
// Ctrl-C ends.
func withServer(a *app, do func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		t, err := chosenTarget(a, cmd)
		if err != nil {
			return err
		}
		s, err := client.New(t.Options)
		if err != nil {
			return err
		}
		defer s.Close()
		err = do(ctx, s, cmd, args)
		if t.local && errors.Is(err, syscall.ECONNREFUSED) {
			// It was killed and left its file behind, or has just ended.
			return &instance.NotRunningError{Dir: a.dataDir, Err: err}
		}
		return err
	}
}

// about is withServer for a verb whose one argument names something there.
func about[T any](a *app, find func(*client.Client, context.Context, string) (T, error),
	do func(ctx context.Context, s *client.Client, cmd *cobra.Command, found T) error,
) func(*cobra.Command, []string) error {
	return withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
		found, err := find(s, ctx, args[0])
		if err != nil {
			return err
		}
		return do(ctx, s, cmd, found)
	})
}
