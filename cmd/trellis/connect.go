package main

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/devstack"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

const databaseEnv = "TRELLIS_DATABASE_URL"

// givenDatabase is the database that the person named, "" for none.
func (a *app) givenDatabase() string { return cmp.Or(a.databaseURL, a.getenv(databaseEnv)) }

// database is the URL of the one named, else of the running instance.
func (a *app) database() (string, error) {
	if url := a.givenDatabase(); url != "" {
		return url, nil
	}
	runtime, err := devstack.ReadRuntime(a.dataDir)
	return runtime.DatabaseURL, err
}

// open connects as the local user.
func (a *app) open(ctx context.Context) (*store.Store, error) {
	url, err := a.database()
	if err != nil {
		return nil, err
	}
	s, err := store.Open(ctx, url, devstack.LocalUser)
	if isUnreachable(err) && a.givenDatabase() == "" {
		// It was killed and left its file behind.
		return nil, &devstack.NotRunningError{Dir: a.dataDir, Err: err}
	}
	return s, err
}

// withStore runs a verb with an open store and a context that Ctrl-C ends.
func (a *app) withStore(do func(ctx context.Context, s *store.Store, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		s, err := a.open(ctx)
		if err != nil {
			return err
		}
		defer s.Close()
		return do(ctx, s, cmd, args)
	}
}

// format is the value of -o.
type format string

func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "text|json" }

// Set implements pflag.Value.
func (f *format) Set(text string) error {
	if text != "text" && text != "json" {
		return wrongUsage("must be text or json")
	}
	*f = format(text)
	return nil
}

func addFormat(cmd *cobra.Command, f *format) {
	*f = "text"
	cmd.Flags().VarP(f, "output", "o", "how to print the answer")
}

func (a *app) printJSON(value any) error {
	encoder := json.NewEncoder(a.out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
