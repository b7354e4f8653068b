//go:build linux

package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tendril-run/tendril/internal/controlplane/devstack"
	"github.com/tendril-run/tendril/internal/controlplane/notify"
	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/controlplane/serve"
	"github.com/tendril-run/tendril/internal/controlplane/site"
	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/signature"
	"github.com/tendril-run/tendril/internal/tracing"
	"github.com/tendril-run/tendril/internal/version"
)

// serveFlags are those that are not options as they stand.
type serveFlags struct {
	agentURLs []string
	proxies   []string
	keyFile   string
	logFormat string
	accessLog string
	webhooks  webhookFlags
	allowHTTP bool
	maxBody   int64
	issuer    issuerFlags
}

func serveCommand(a *app) *cobra.Command {
	var o serve.Options
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve people and agents over HTTPS from your own PostgreSQL",
		Long: `Serves people the console and the REST API of a migrated database, and agents the
functions they call under /rest/v1/rpc/, as PostgREST serves them on Supabase:
nobody then needs access to the database. /healthz tells whether the database
answers. Leases of agents that are not seen any more are ended, too.

--metrics-listen opens a second port, for probes and Prometheus: /healthz there
tells whether this process still turns (a database that is away is no reason to
restart it), /readyz whether the database answers and has the contract, /metrics
what docs/monitoring describes. Let nobody but those reach it.

An agent reaches it by queue.url = "https://HOST", with its cluster's token and
nothing else. To answer other machines it needs --tls-cert and --tls-key. Where a
proxy in front speaks TLS, add --allow-http, let nothing but that proxy reach the
port, and name the proxy by --trusted-proxy, so that limits count its clients.

The database is named by --database-url, as the role that "trellis migrate" ran
as; --database-url-file keeps a password out of arguments and environment, and is
read again for each connection, so that a password may be changed meanwhile. At most
--database-connections + 13 connections are made to it, whatever the number of agents
and people, and one more for --metrics-listen. Each flag can be set by the variable
that is named with it.

` + issuerHelp,
		Example: `  trellis serve --database-url postgres://me@db.example/tendril --listen :443 \
      --tls-cert tls.crt --tls-key tls.key
  TRELLIS_DATABASE_URL=postgres://… trellis serve --listen :8080 --allow-http \
      --trusted-proxy 10.0.0.0/8
  trellis serve --public-url https://tendril.example \
      --oidc-issuer https://accounts.example --oidc-client-id tendril \
      --oidc-client-secret-file secret --first-admin ada@example.com`,
		Args:    none,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(a, cmd.LocalFlags()) },
		RunE:    func(cmd *cobra.Command, _ []string) error { return runServe(a, cmd, o, f) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&o.Listen, "listen", devstack.DefaultListen, "address to listen on")
	flags.StringVar(&o.MetricsListen, "metrics-listen", "", "address for /metrics, /healthz and /readyz, without TLS or sign-in, such as 127.0.0.1:9091; default: none")
	flags.StringVar(&o.CertFile, "tls-cert", "", "certificate with its chain, PEM; read again when it is renewed")
	flags.StringVar(&o.KeyFile, "tls-key", "", "key of the certificate, PEM")
	flags.BoolVar(&f.allowHTTP, "allow-http", false, "answer other machines over plain HTTP, for a proxy in front that speaks TLS: everyone between the two can read passwords and tokens")
	flags.StringVar(&f.keyFile, "api-key-file", "", "file with the API key that clients must send; default: none is asked for")
	flags.StringSliceVar(&f.proxies, "trusted-proxy", nil, "address or network of proxies whose X-Forwarded-For counts (repeatable, or with commas)")
	flags.StringSliceVar(&f.agentURLs, "agent-url", nil, "further URL by which agents reach this server, for which they may sign requests (repeatable, or with commas)")
	flags.Float64Var(&o.Gateway.Rate, "rate", rpcgateway.DefaultRate, "requests a second from one address, in bursts of twice as many; below 0: no limit")
	flags.Int64Var(&f.maxBody, "max-body", rpcgateway.DefaultMaxBody, "bytes of one request's body")
	flags.IntVar(&o.Limits.MaxHeader, "max-header", web.DefaultMaxHeader, "bytes of one request's header")
	flags.IntVar(&o.Limits.MaxConnections, "max-connections", web.DefaultMaxConnections, "open connections of all clients together")
	flags.IntVar(&o.Limits.MaxAddress, "max-address-connections", web.DefaultMaxAddress, "open connections of one address (for IPv6 a /64), and its requests at once; further ones are refused")
	flags.IntVar(&o.Gateway.MaxHeld, "max-held", rpcgateway.DefaultMaxHeld, "calls of agents that wait for news at once; further ones are answered, and the agents poll")
	flags.IntVar(&o.Gateway.MaxCalls, "max-calls", rpcgateway.DefaultMaxCalls, "calls under way at once; further ones are asked to come back")
	flags.DurationVar(&o.Limits.ReadTimeout, "read-timeout", web.DefaultReadTimeout, "how long a request may take to arrive")
	flags.DurationVar(&o.Limits.WriteTimeout, "write-timeout", web.DefaultWriteTimeout, "how long an answer may take, the call included")
	flags.DurationVar(&o.Limits.IdleTimeout, "idle-timeout", web.DefaultIdleTimeout, "how long a connection is kept between two requests")
	flags.IntVar(&o.Gateway.MaxConns, "database-connections", rpcgateway.DefaultMaxConns, "connections for calls to the database")
	flags.DurationVar(&o.Gateway.StatementTimeout, "statement-timeout", rpcgateway.DefaultStatementTimeout, "how long a call may take in the database")
	flags.DurationVar(&o.Gateway.LockTimeout, "lock-timeout", rpcgateway.DefaultLockTimeout, "how long a call may wait for a lock there")
	flags.BoolVar(&o.Site.Inspect.Private, "inspect-private", false, "read templates of git servers at private addresses, too; else an agent does")
	flags.StringVar(&o.Site.TraceURL, "trace-url", "", "URL of a trace, with {trace_id} in place of its id, for a link on each run's page; default: none")
	flags.StringVar(&f.accessLog, "access-log", "refused", "which calls are logged: all, or those refused, a few a second of them")
	flags.StringVar(&f.logFormat, "log-format", "text", "how to log: text or json")
	f.issuer.add(flags, &o.Site)
	f.webhooks.add(flags)
	flags.VisitAll(func(flag *pflag.Flag) { flag.Usage += " (" + envOf(flag) + ")" })
	return cmd
}

// envOf is a flag's twin in the environment.
func envOf(flag *pflag.Flag) string {
	return "TRELLIS_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
}

// fromEnvironment sets the verb's own flags that the command line does not.
func fromEnvironment(a *app, flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(flag *pflag.Flag) {
		value := a.getenv(envOf(flag))
		if err != nil || flag.Changed || value == "" || !strings.HasSuffix(flag.Usage, "("+envOf(flag)+")") {
			return
		}
		if setErr := flag.Value.Set(value); setErr != nil {
			err = wrongUsage("%s: %v", envOf(flag), setErr)
		}
	})
	return err
}

func runServe(a *app, cmd *cobra.Command, o serve.Options, f serveFlags) error {
	url, err := givenDatabase(a)
	if err != nil {
		return err
	}
	if url == "" {
		return wrongUsage("--database-url is missing: the database to serve (or %s, or %s)", databaseEnv, databaseFileEnv)
	}
	if err := f.apply(&o); err != nil {
		return err
	}
	var handler slog.Handler = slog.NewTextHandler(a.err, nil)
	if f.logFormat == "json" {
		handler = slog.NewJSONHandler(a.err, nil)
	}
	log := slog.New(handler)
	o.Gateway.DatabaseURL, o.Gateway.DatabaseURLNow = url, func() (string, error) { return givenDatabase(a) }
	o.Gateway.Log, o.Version = log, version.String()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program's file: %w", err)
	}
	o.Site.Inspect.Command = []string{self, inspectVerb}
	o.Monitoring = func(url string) { log.Info("serving metrics and probes", "url", url) }
	o.Started = func(url string, contract int) {
		log.Info("serving people and agents", "url", url, "contract", contract, "version", o.Version)
	}
	if o.Site.Tracer, err = tracing.Start("trellis", o.Version, a.getenv, log); err != nil {
		return wrongUsage("%v", err)
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err = serve.Run(ctx, o)
	if err == nil {
		log.Info("stopped")
	}
	return err
}

// apply checks what flags say, and puts it into the options.
func (f serveFlags) apply(o *serve.Options) error {
	for _, proxy := range f.proxies {
		network, err := network(strings.TrimSpace(proxy))
		if err != nil {
			return wrongUsage("--trusted-proxy %q: must be an address or a network, such as 10.0.0.0/8", proxy)
		}
		o.Gateway.TrustedProxies = append(o.Gateway.TrustedProxies, network)
	}
	o.Site.TrustedProxies, o.Limits.TrustedProxies = o.Gateway.TrustedProxies, o.Gateway.TrustedProxies
	if err := f.issuer.apply(&o.Site); err != nil {
		return err
	}
	if to := o.Site.TraceURL; to != "" && (!isWebURL(strings.ReplaceAll(to, "{trace_id}", "0")) || !strings.Contains(to, "{trace_id}")) {
		return wrongUsage("--trace-url must be a URL with {trace_id} in it, such as https://jaeger.example/trace/{trace_id}")
	}
	for _, one := range append(slices.Clone(f.agentURLs), o.Site.PublicURL) {
		switch {
		case one == "":
		case !isWebURL(one):
			return wrongUsage("--agent-url %q: must be a URL, such as https://trellis.tendril.svc", one)
		default:
			o.Gateway.Authorities = append(o.Gateway.Authorities, signature.AuthorityOf(one))
		}
	}
	if err := f.webhooks.apply(&o.Site); err != nil {
		return err
	}
	if f.keyFile != "" {
		key, err := os.ReadFile(f.keyFile)
		if err != nil {
			return fmt.Errorf("read the API key: %w", err)
		}
		if o.Gateway.APIKey = strings.TrimSpace(string(key)); o.Gateway.APIKey == "" {
			return fmt.Errorf("the API key's file %s is empty", f.keyFile)
		}
	}
	if err := web.CheckPlain(o.Listen, o.CertFile, o.KeyFile, f.allowHTTP); err != nil {
		return wrongUsage("%v", err)
	}
	o.Gateway.MaxBody, o.Gateway.LogAll = f.maxBody, f.accessLog == "all"
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{f.accessLog != "all" && f.accessLog != "refused", "--access-log must be all or refused"},
		{f.logFormat != "text" && f.logFormat != "json", "--log-format must be text or json"},
		{o.Gateway.Rate == 0, "--rate must not be 0: below 0 means no limit"},
		{min(f.maxBody, int64(o.Limits.MaxHeader), int64(o.Limits.MaxConnections), int64(o.Limits.MaxAddress), int64(o.Gateway.MaxCalls), int64(o.Gateway.MaxHeld), int64(o.Gateway.MaxConns)) < 1, "--max-body, --max-header, --max-connections, --max-address-connections, --max-calls, --max-held and --database-connections must be above 0"},
		{min(o.Limits.ReadTimeout, o.Limits.WriteTimeout, o.Limits.IdleTimeout, o.Gateway.StatementTimeout, o.Gateway.LockTimeout) <= 0, "time-outs must be above 0"},
	} {
		if rule.broken {
			return &usageError{rule.says}
		}
	}
	return nil
}

func network(text string) (netip.Prefix, error) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix, nil
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return address.Prefix(address.BitLen())
}

// issuerFlags say who people are for `trellis serve`.
type issuerFlags struct {
	oidcSecretFile, supabaseKeyFile string
}

const issuerHelp = `People sign in at an issuer of identities, and come back to
PUBLIC-URL/signin/callback, which must be registered there:

  OpenID Connect   --oidc-issuer, --oidc-client-id, --oidc-client-secret-file
                   (none for a public client). JWTs that programs send as
                   Bearer count when they are for --oidc-audience.
  Supabase         --supabase-url, --supabase-key-file (the publishable or anon
                   key), --supabase-provider (such as github or google). Bearer
                   JWTs need a project with asymmetric signing keys.

People belong to no organisation until an admin invites them and they accept.
--first-admin EMAIL names who becomes admin of the first organisation: as long as
no admin has ever signed in, and only if the issuer says that the address is
verified. Without an issuer, "trellis link" prints one-time links.`

func (f *issuerFlags) add(flags *pflag.FlagSet, o *site.Options) {
	flags.StringVar(&o.PublicURL, "public-url", "", "how people and agents reach this server, such as https://tendril.example; cookies are for https only then")
	flags.StringVar(&o.OIDC.Issuer, "oidc-issuer", "", "URL of the OpenID Connect issuer at which people sign in, exactly as its tokens have it")
	flags.StringVar(&o.OIDC.ClientID, "oidc-client-id", "", "this server's id there")
	flags.StringVar(&f.oidcSecretFile, "oidc-client-secret-file", "", "file with this server's secret there; default: none, as a public client")
	flags.StringVar(&o.OIDC.Audience, "oidc-audience", "", "whom JWTs that programs send must be for; default: the client id")
	flags.StringVar(&o.Supabase.URL, "supabase-url", "", "URL of the Supabase project whose users sign in, https://PROJECT.supabase.co")
	flags.StringVar(&f.supabaseKeyFile, "supabase-key-file", "", "file with the project's publishable (anon) key")
	flags.StringVar(&o.Supabase.Provider, "supabase-provider", "", "how browsers sign in there, such as github; default: browsers do not")
	flags.StringVar(&o.FirstAdmin, "first-admin", "", "e-mail address of who becomes admin while no admin has ever signed in")
}

// apply checks what flags say, and puts it into the options.
func (f *issuerFlags) apply(o *site.Options) (err error) {
	o.PublicURL, o.Supabase.URL = strings.TrimRight(o.PublicURL, "/"), strings.TrimRight(o.Supabase.URL, "/")
	browsers := o.OIDC.ClientID != "" || o.Supabase.Provider != ""
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{!isWebURL(o.PublicURL) && o.PublicURL != "", "--public-url must be a URL, such as https://tendril.example"},
		{hasPath(o.PublicURL), "--public-url must have no path: this server answers at the root of its host"},
		{o.OIDC.Issuer != "" && o.Supabase.URL != "", "--oidc-issuer and --supabase-url: give one of them"},
		{!isWebURL(o.OIDC.Issuer) && o.OIDC.Issuer != "", "--oidc-issuer must be a URL, such as https://accounts.example"},
		{!isWebURL(o.Supabase.URL) && o.Supabase.URL != "", "--supabase-url must be a URL, such as https://PROJECT.supabase.co"},
		{o.OIDC.Issuer == "" && (o.OIDC.ClientID != "" || o.OIDC.Audience != "" || f.oidcSecretFile != ""), "--oidc-issuer is missing"},
		{o.OIDC.Issuer != "" && o.OIDC.ClientID == "" && o.OIDC.Audience == "", "--oidc-client-id is missing (or --oidc-audience, where only programs come)"},
		{o.Supabase.URL == "" && (o.Supabase.Provider != "" || f.supabaseKeyFile != ""), "--supabase-url is missing"},
		{o.Supabase.Provider != "" && f.supabaseKeyFile == "", "--supabase-key-file is missing: browsers sign in with it"},
		{browsers && o.PublicURL == "", "--public-url is missing: where browsers come back to after signing in"},
		{o.FirstAdmin != "" && !browsers, "--first-admin needs an issuer that browsers sign in at: --oidc-client-id or --supabase-provider"},
		{o.FirstAdmin != "" && !strings.Contains(o.FirstAdmin, "@"), "--first-admin must be an e-mail address"},
	} {
		if rule.broken {
			return &usageError{rule.says}
		}
	}
	if o.OIDC.ClientSecret, err = secretIn(f.oidcSecretFile, "the client's secret"); err == nil {
		o.Supabase.Key, err = secretIn(f.supabaseKeyFile, "the project's key")
	}
	return err
}

// secretIn reads a secret from a file; "" where there is none.
func secretIn(file, what string) (string, error) {
	if file == "" {
		return "", nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", what, err)
	}
	secret := strings.TrimSpace(string(content))
	if secret == "" {
		return "", fmt.Errorf("the file of %s, %s, is empty", what, file)
	}
	return secret, nil
}

func hasPath(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Path != ""
}

func isWebURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.RawQuery == "" && u.Fragment == "" && u.User == nil
}

// webhookFlags say how webhooks are served.
type webhookFlags struct {
	keyFile string
	allow   []string
}

func (f *webhookFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.keyFile, "key-file", "", "file with this control plane's own key, 32 random bytes in base64, the same for all of its processes: without it there are no webhooks")
	flags.StringSliceVar(&f.allow, "webhook-allow", nil, "host, address or network of your own that webhooks may reach, also without TLS (repeatable, or with commas)")
}

func (f *webhookFlags) apply(o *site.Options) (err error) {
	if o.Notify.Allowed, err = notify.ParseAllowed(f.allow); err != nil {
		return wrongUsage("--webhook-allow: %v", err)
	}
	if f.keyFile != "" {
		o.Notify.Key, err = notify.ReadKey(f.keyFile)
	}
	return err
}
