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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/contexts"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/version"
)

// loginLimit is how long the browser is waited for.
const loginLimit = 10 * time.Minute

type loginFlags struct {
	name, tokenFile, caFile string
	noBrowser               bool
}

func loginCommand(a *app) *cobra.Command {
	var f loginFlags
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
			return untilInterrupted(a, cmd, func(ctx context.Context) error { return logInto(ctx, a, args, f) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "what to call the context; default: the server's host")
	flags.StringVar(&f.tokenFile, "token-file", "", `file with a token of yours, "-" for standard input`)
	flags.StringVar(&f.caFile, "ca-file", "", "PEM file of certificates to trust besides the system's (TRELLIS_CA_FILE)")
	flags.BoolVar(&f.noBrowser, "no-browser", false, "print the URL to open rather than opening it")
	addFormat(a, cmd)
	return cmd
}

func logInto(ctx context.Context, a *app, args []string, f loginFlags) error {
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
	if o.Token, err = tokenFor(ctx, a, o, f); err != nil {
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
	made := contexts.Context{URL: s.URL(), User: called(me.Name, me.Email, me.ID), Org: o.Org, CAFile: o.CAFile, Token: o.Token}
	if err := contexts.Update(path, func(f *contexts.File) error {
		f.Current, f.Contexts[name] = name, made
		return nil
	}); err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(shownContext{Name: name, Current: true, Context: made})
	}
	if err := a.print("You are logged in to %s as %s; the context %s is the current one.", s.URL(), printable.Text(called(me.Name, me.Email, me.ID)), name); err != nil {
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
func tokenFor(ctx context.Context, a *app, o client.Options, f loginFlags) (string, error) {
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
		err = &problem.UnreachableError{Doing: "log in", Err: fmt.Errorf("nobody came back from the browser within %s", loginLimit)}
	}
	return token.Token, err
}

// loopbackHost reports whether a host is this machine.
func loopbackHost(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// shownContext is a context as it is listed: without its token.
type shownContext struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	contexts.Context
}

func contextsCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "contexts",
		Short: "List the servers that you are logged in to, and choose one",
		Long: `Lists the servers that you are logged in to; the one with the star is asked. "local"
is what trellis up runs on the data directory.

A server is chosen, in this order, by --server or --context, by TRELLIS_URL (with
TRELLIS_TOKEN or TRELLIS_TOKEN_FILE), by a data directory that is named, by the current
context; else it is local.`,
		Args: verb,
	}
	cmd.AddCommand(contextsListCommand(a), contextsUseCommand(a), contextsRemoveCommand(a))
	return cmd
}

func contextsListCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "list",
		Short:   "List the servers that you are logged in to",
		Example: `  trellis contexts list`,
		Args:    none,
		RunE: func(*cobra.Command, []string) error {
			list, err := listContexts(a)
			return listing(&a.printer, list, err, "", "\tNAME\tSERVER\tAS\tORG", func(c shownContext) []any {
				mark := ""
				if c.Current {
					mark = "*"
				}
				return []any{mark, c.Name, c.URL, c.User, c.Org}
			})
		},
	})
}

func listContexts(a *app) ([]shownContext, error) {
	kept, err := contexts.Load(contexts.Path(a.getenv))
	if err != nil {
		return nil, err
	}
	local := shownContext{Name: contexts.Local, Current: kept.Current == "" || kept.Current == contexts.Local, Context: contexts.Context{URL: "not running"}}
	if runtime, err := instance.ReadRuntime(a.dataDir); err == nil {
		local.URL = runtime.URL
	}
	list := []shownContext{local}
	for _, name := range kept.Names() {
		list = append(list, shownContext{Name: name, Current: name == kept.Current, Context: kept.Contexts[name]})
	}
	return list, nil
}

func contextsUseCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "use NAME",
		Short:   "Have another server asked from now on",
		Example: "  trellis contexts use local",
		Args:    one("the context's name"),
		RunE: func(_ *cobra.Command, args []string) error {
			var chosen contexts.Context
			err := contexts.Update(contexts.Path(a.getenv), func(f *contexts.File) (err error) {
				if args[0] != contexts.Local {
					chosen, err = f.Find(args[0])
				}
				f.Current = args[0]
				return err
			})
			if err != nil {
				return err
			}
			return a.answer(nil, shownContext{Name: args[0], Current: true, Context: chosen}, "The context %s is the current one.", args[0])
		},
	})
}

func contextsRemoveCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "remove NAME",
		Short:   "Forget a server and its token; see also trellis logout",
		Long:    `Forgets a server and its token, without asking the server. "trellis logout" revokes the token as well.`,
		Example: `  trellis contexts remove trellis.example`,
		Args:    one("the context's name"),
		RunE: func(_ *cobra.Command, args []string) error {
			gone, err := forgetContext(a, args[0])
			return a.answer(err, shownContext{Name: args[0], Context: gone}, "The context %s is forgotten.", args[0])
		},
	})
}

// forgetContext removes a context and returns it.
func forgetContext(a *app, name string) (gone contexts.Context, err error) {
	err = contexts.Update(contexts.Path(a.getenv), func(f *contexts.File) (err error) {
		if gone, err = f.Find(name); err != nil {
			return err
		}
		delete(f.Contexts, name)
		if f.Current == name {
			f.Current = ""
		}
		return nil
	})
	return gone, err
}

func logoutCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "logout [CONTEXT]",
		Short:   "Revoke the token of a server, and forget it",
		Long:    `Revokes the token that "trellis login" has kept of a server, the current one unless another is named, and forgets it.`,
		Example: `  trellis logout trellis.example`,
		Args:    atMostOne("a context's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return untilInterrupted(a, cmd, func(ctx context.Context) error { return logOut(ctx, a, args) })
		},
	})
}

func logOut(ctx context.Context, a *app, args []string) error {
	kept, err := contexts.Load(contexts.Path(a.getenv))
	if err != nil {
		return err
	}
	name := kept.Current
	if len(args) == 1 {
		name = args[0]
	} else if a.context != "" {
		name = a.context
	}
	if name == "" || name == contexts.Local {
		return wrongUsage("there is nothing to log out of: %q is what trellis up runs here, and its token ends with it", contexts.Local)
	}
	t, err := namedTarget(a, name)
	if err != nil {
		return err
	}
	s, err := client.New(t.Options)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.RevokeOwnToken(ctx); err != nil && !unknownToken(err) {
		return fmt.Errorf("%w; the context %s is still there: trellis contexts remove %s forgets it all the same", err, name, name)
	}
	gone, err := forgetContext(a, name)
	return a.answer(err, shownContext{Name: name, Context: gone}, "You are logged out of %s.", t.URL)
}

func whoamiCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "whoami",
		Short:   "Say which server is asked, and as whom",
		Example: `  trellis whoami`,
		Args:    none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			me, err := s.Me(ctx)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(struct {
					Server string `json:"server"`
					wire.MeBody
				}{s.URL(), me})
			}
			rows := [][]string{{"Server", s.URL()}, {"You", called(me.Name, me.Email, me.ID)}, {"Id", me.ID.String()}}
			for _, org := range me.Orgs {
				rows = append(rows, []string{"Organisation", org.Name + ", as " + org.Role})
			}
			return a.pairs(rows...)
		}),
	})
}

func apiTokensCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "api-tokens",
		Short: "List, make and revoke your own API tokens",
		Long: `Lists and revokes your own API tokens, those of "trellis login" among them, and opens
the page that makes one: a token cannot make others.`,
		Args: verb,
	}
	lists := &cobra.Command{
		Use:     "list",
		Short:   "List your own API tokens",
		Example: `  trellis api-tokens list`,
		Args:    none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			tokens, err := s.APITokens(ctx)
			return listing(&a.printer, tokens, err, "You have no API token.", "ID\tNAME\tMAY\tMADE\tLAST USED\tENDS", func(t wire.Credential) []any {
				return []any{t.ID, t.Name, mayOf(t), t.CreatedAt.Local().Format(time.DateTime), at(t.LastUsedAt), at(t.ExpiresAt)}
			})
		}),
	}
	addFormat(a, lists)
	revokes := &cobra.Command{
		Use:     "revoke ID",
		Short:   "Revoke one of your own API tokens",
		Example: `  trellis api-tokens revoke 3f0c2a10-6a2b-4f4e-9a58-0c1d2e3f4a5b`,
		Args:    one("the token's id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			id, err := uuid.Parse(args[0])
			if err != nil {
				return wrongUsage("%q is no token's id: trellis api-tokens list", args[0])
			}
			return a.answer(s.RevokeAPIToken(ctx, id), map[string]any{"id": id, "revoked": true}, "The token %s is revoked.", id)
		}),
	}
	addFormat(a, revokes)
	cmd.AddCommand(lists, apiTokensCreateCommand(a), revokes)
	return cmd
}

// mayOf says in a few words what a token may do.
func mayOf(t wire.Credential) string {
	p := t.Powers
	switch {
	case p == nil:
		return "all"
	case p.Change == "nothing":
		return "read" + callsOf(p)
	}
	may := "propose"
	if len(p.Workspaces) > 0 {
		may += " in " + strings.Join(p.Workspaces, " ")
	}
	if len(p.MayApply) > 0 {
		may += ", apply in " + strings.Join(p.MayApply, " ")
	}
	if p.Approve {
		may += ", approve"
	}
	if p.Destroy != nil && !*p.Destroy {
		may += ", destroy nothing"
	}
	if p.RunsPerHour > 0 {
		may += fmt.Sprintf(", %d runs an hour", p.RunsPerHour)
	}
	return may + callsOf(p)
}

func callsOf(p *wire.Powers) string {
	if p.CallsPerMinute == 0 {
		return ""
	}
	return fmt.Sprintf(", %d calls a minute", p.CallsPerMinute)
}

// apiTokensCreateCommand leads to the page that makes a token, with its form filled in.
func apiTokensCreateCommand(a *app) *cobra.Command {
	var mayApply, workspaces []string
	var propose, readOnly, noDestroy, approve, print bool
	var days, runs, calls int
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Open the page that makes an API token",
		Long: `Opens the account page in a browser, with the form of a new API token filled in. There you
make it, and copy it.

Without a flag it may do all that you may. With --propose plans of its runs wait for a
person, but in the workspaces of --may-apply; it does no admin's work.`,
		Example: `  trellis api-tokens create assistant --may-apply 'lab/*' --no-destroy
  trellis api-tokens create dashboard --read-only --calls-per-minute 30`,
		Args: one("what will use it"),
		RunE: withServer(a, func(_ context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			proposes := propose || len(mayApply)+len(workspaces)+runs > 0 || noDestroy || approve
			switch {
			case readOnly && proposes:
				return wrongUsage("--read-only goes with none of the other powers")
			case cmd.Flags().Changed("runs-per-hour") && (runs < 1 || runs > 1000):
				return wrongUsage("--runs-per-hour: must be 1 to 1000")
			case cmd.Flags().Changed("calls-per-minute") && (calls < 1 || calls > 6000):
				return wrongUsage("--calls-per-minute: must be 1 to 6000")
			case calls > 0 && !readOnly && !proposes:
				return wrongUsage("--calls-per-minute is for a token that reads or proposes: add --read-only or --propose")
			case !slices.Contains([]int{7, 30, 90, 366}, days):
				return wrongUsage("--days: must be 7, 30, 90 or 366")
			}
			form := url.Values{"name": {args[0]}, "days": {strconv.Itoa(days)}}
			if readOnly {
				form.Set("change", "nothing")
			} else if proposes {
				form.Set("change", "propose")
				form.Set("may_apply", strings.Join(mayApply, " "))
				form.Set("workspaces", strings.Join(workspaces, " "))
				for field, set := range map[string]bool{"destroy": !noDestroy, "approve": approve} {
					if set {
						form.Set(field, "yes")
					}
				}
				if runs > 0 {
					form.Set("runs_per_hour", strconv.Itoa(runs))
				}
			}
			if calls > 0 {
				form.Set("calls_per_minute", strconv.Itoa(calls))
			}
			page := s.URL() + "/account?" + form.Encode() + "#new"
			if !print && !a.json() && a.browse(page) == nil {
				a.say("Opened in a browser: %s", page)
				return nil
			}
			return a.answer(nil, map[string]string{"url": page}, "%s", page)
		}),
	}
	flags := cmd.Flags()
	flags.BoolVar(&propose, "propose", false, "plans of its runs wait for a person")
	flags.StringSliceVar(&mayApply, "may-apply", nil, "workspaces where they don't, such as 'lab/*'; a destroy always waits")
	flags.StringSliceVar(&workspaces, "workspaces", nil, "workspaces where it may change anything; default: all")
	flags.BoolVar(&noDestroy, "no-destroy", false, "it may not ask for a destroy")
	flags.BoolVar(&approve, "may-approve", false, "it may approve plans that others have proposed")
	flags.BoolVar(&readOnly, "read-only", false, "it reads, and changes nothing")
	flags.IntVar(&runs, "runs-per-hour", 0, "how many runs it may ask for; default: any number")
	flags.IntVar(&calls, "calls-per-minute", 0, "how many requests it is answered; default: any number, and 120 of tools")
	flags.IntVar(&days, "days", 90, "how long it lasts: 7, 30, 90 or 366")
	flags.BoolVar(&print, "print", false, "print the page's URL and open nothing")
	addFormat(a, cmd)
	return cmd
}
