package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/contexts"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/version"
)

// loginLimit is how long the browser is waited for.
const loginLimit = 10 * time.Minute

type loginFlags struct {
	name, tokenFile, caFile string
	noBrowser               bool
}

func (a *app) loginCommand() *cobra.Command {
	var f loginFlags
	var out format
	cmd := &cobra.Command{
		Use:   "login [URL]",
		Short: "Log in to a server, and make it the one that is asked",
		Long: `Logs in to a server and keeps its URL and a token of yours as a context, which is the
current one from then on; "trellis contexts" lists them. The token is in a file that
only you can read: ~/.config/tendril/trellis.toml, or what TRELLIS_CONFIG names.

A browser is opened to ask you, and comes back to this machine. Where there is none, make
a token on the server's account page and give it by --token-file, "-" for standard input;
never on the command line, which others on this machine can see.

Without URL it is the current context's server.`,
		Example: `  trellis login https://trellis.example
  trellis login https://trellis.example --token-file - < token.txt`,
		Args: atMostOne("the server's URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.untilInterrupted(cmd, func(ctx context.Context) error { return a.login(ctx, args, f, out) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "what to call the context; default: the server's host")
	flags.StringVar(&f.tokenFile, "token-file", "", `file with a token of yours, "-" for standard input`)
	flags.StringVar(&f.caFile, "ca-file", "", "PEM file of certificates to trust besides the system's (TRELLIS_CA_FILE)")
	flags.BoolVar(&f.noBrowser, "no-browser", false, "print the URL to open rather than opening it")
	addFormat(cmd, &out)
	return cmd
}

func (a *app) login(ctx context.Context, args []string, f loginFlags, out format) error {
	path := contexts.Path(a.getenv)
	kept, err := contexts.Load(path)
	if err != nil {
		return err
	}
	before := kept.Contexts[kept.Current]
	server := cmp.Or(append(args, a.server, a.getenv(urlEnv), before.URL)...)
	if server == "" {
		return wrongUsage("name the server: trellis login https://trellis.example")
	}
	u, err := client.ParseURL(server)
	if err != nil {
		return wrongUsage("%v", err)
	}
	o := client.Options{URL: server, Org: a.org, CAFile: cmp.Or(f.caFile, a.getenv(caFileEnv)), Version: version.String()}
	if o.CAFile != "" {
		if o.CAFile, err = filepath.Abs(o.CAFile); err != nil { // it is kept
			return err
		}
	}
	if sameServer(before.URL, server) {
		o.Org, o.CAFile = cmp.Or(o.Org, before.Org), cmp.Or(o.CAFile, before.CAFile)
	}
	if u.Scheme == "http" && !loopbackHost(u.Hostname()) {
		a.say("Warning: %s is plain HTTP: anyone on the network between can read the token.", server)
	}
	if o.Token, err = a.tokenFor(ctx, o, f); err != nil {
		return err
	}
	s, err := client.New(o)
	if err != nil {
		return err
	}
	defer s.Close()
	me, err := s.Me(ctx)
	if err != nil {
		return err
	}
	name := cmp.Or(f.name, a.context, nameFor(kept, u))
	if name == contexts.Local {
		return wrongUsage("the name %s is for what trellis up runs here: choose another with --name", contexts.Local)
	}
	made := contexts.Context{URL: s.URL(), User: me.Called(), Org: o.Org, CAFile: o.CAFile, Token: o.Token}
	if err := contexts.Update(path, func(f *contexts.File) error {
		f.Current, f.Contexts[name] = name, made
		return nil
	}); err != nil {
		return err
	}
	if out == "json" {
		return a.printJSON(shownContext{Name: name, Current: true, Context: made})
	}
	if err := a.print("You are logged in to %s as %s; the context %s is the current one.", s.URL(), printable.Text(me.Called()), name); err != nil {
		return err
	}
	switch {
	case len(me.Orgs) == 0:
		a.say("You belong to no organisation there yet. Ask an admin to invite you, then accept:  trellis invitations")
	case len(me.Orgs) > 1 && o.Org == "":
		a.say("You belong to several organisations: say which by --org, %s, or trellis login --org.", orgEnv)
	}
	return nil
}

// nameFor is the name of a context for a server: that of the one it has, else
// its host.
func nameFor(kept contexts.File, u *url.URL) string {
	for _, name := range append([]string{kept.Current}, kept.Names()...) {
		if c, ok := kept.Contexts[name]; ok && sameServer(c.URL, u.String()) {
			return name
		}
	}
	return u.Host
}

// tokenFor reads a token, or has a browser get one.
func (a *app) tokenFor(ctx context.Context, o client.Options, f loginFlags) (string, error) {
	switch f.tokenFile {
	case "":
	case "-":
		return readToken("--token-file", a.in)
	default:
		file, err := os.Open(filepath.Clean(f.tokenFile))
		if err != nil {
			return "", wrongUsage("--token-file: %v", err)
		}
		defer func() { _ = file.Close() }()
		return readToken("--token-file", file)
	}
	s, err := client.New(o)
	if err != nil {
		return "", err
	}
	defer s.Close()
	// Before anybody goes to a page that is not there.
	if _, err := s.Me(ctx); err != nil && !unknownToken(err) {
		return "", err
	}
	login, err := s.NewLogin(ctx)
	if err != nil {
		return "", err
	}
	defer login.Close()
	host, _ := os.Hostname() // only a name to show
	page := login.URL(cmp.Or(host, "trellis"))
	if f.noBrowser || a.browse(page) != nil {
		a.say("Open this in a browser on this machine:\n\n  %s\n", page)
	} else {
		a.say("A browser was opened to ask you. If it was not, open this on this machine:\n\n  %s\n", page)
	}
	ctx, cancel := context.WithTimeout(ctx, loginLimit)
	defer cancel()
	token, err := login.Wait(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = &store.UnreachableError{Doing: "log in", Err: fmt.Errorf("nobody came back from the browser within %s", loginLimit)}
	}
	return token.Token, err
}

// loopbackHost reports whether a host is this machine.
func loopbackHost(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}
