//go:build linux

package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tendril-run/tendril/internal/controlplane/devstack"
	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/controlplane/serve"
	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/version"
)

// serveFlags are those that are not options as they stand.
type serveFlags struct {
	proxies   []string
	keyFile   string
	logFormat string
	accessLog string
	webhooks  webhookFlags
	allowHTTP bool
	maxBody   int64
	issuer    issuerFlags
}

func (a *app) serveCommand() *cobra.Command {
	var o serve.Options
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve people and agents over HTTPS from your own PostgreSQL",
		Long: `Serves people the console and the REST API of a migrated database, and agents the
functions they call under /rest/v1/rpc/, as PostgREST serves them on Supabase:
nobody then needs access to the database. /healthz tells whether the database
answers. Leases of agents that are not heard of any more are ended, too.

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
		PreRunE: func(cmd *cobra.Command, _ []string) error { return a.fromEnvironment(cmd.LocalFlags()) },
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.serve(cmd, o, f) },
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
	flags.Float64Var(&o.Gateway.Rate, "rate", rpcgateway.DefaultRate, "requests a second from one address, in bursts of twice as many; below 0: no limit")
	flags.Int64Var(&f.maxBody, "max-body", rpcgateway.DefaultMaxBody, "bytes of one request's body")
	flags.IntVar(&o.Limits.MaxHeader, "max-header", web.DefaultMaxHeader, "bytes of one request's header")
	flags.IntVar(&o.Limits.MaxConnections, "max-connections", web.DefaultMaxConnections, "open connections of all clients together")
	flags.IntVar(&o.Gateway.MaxCalls, "max-calls", rpcgateway.DefaultMaxCalls, "calls under way at once; further ones are asked to come back")
	flags.DurationVar(&o.Limits.ReadTimeout, "read-timeout", web.DefaultReadTimeout, "how long a request may take to arrive")
	flags.DurationVar(&o.Limits.WriteTimeout, "write-timeout", web.DefaultWriteTimeout, "how long an answer may take, the call included")
	flags.DurationVar(&o.Limits.IdleTimeout, "idle-timeout", web.DefaultIdleTimeout, "how long a connection is kept between two requests")
	flags.IntVar(&o.Gateway.MaxConns, "database-connections", rpcgateway.DefaultMaxConns, "connections for calls to the database")
	flags.DurationVar(&o.Gateway.StatementTimeout, "statement-timeout", rpcgateway.DefaultStatementTimeout, "how long a call may take in the database")
	flags.DurationVar(&o.Gateway.LockTimeout, "lock-timeout", rpcgateway.DefaultLockTimeout, "how long a call may wait for a lock there")
	flags.BoolVar(&o.Site.Inspect.Private, "inspect-private", false, "look at templates of git servers at private addresses, too; else an agent does")
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
func (a *app) fromEnvironment(flags *pflag.FlagSet) (err error) {
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

func (a *app) serve(cmd *cobra.Command, o serve.Options, f serveFlags) error {
	url, err := a.givenDatabase()
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
	o.Gateway.DatabaseURL, o.Gateway.DatabaseURLNow = url, a.givenDatabase
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
	o.Site.TrustedProxies = o.Gateway.TrustedProxies
	if err := f.issuer.apply(&o.Site); err != nil {
		return err
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
		{min(f.maxBody, int64(o.Limits.MaxHeader), int64(o.Limits.MaxConnections), int64(o.Gateway.MaxCalls), int64(o.Gateway.MaxConns)) < 1, "--max-body, --max-header, --max-connections, --max-calls and --database-connections must be above 0"},
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
