package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/queue/realtime"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
)

// queueReachable says how far the way to the queue is open: name, port, TLS, and
// whoever answers there.
func (d *doctor) queueReachable(ctx context.Context) verdict {
	if strings.HasPrefix(d.Config.Queue.URL, "http") {
		return d.reachHTTP(ctx)
	}
	return d.reachPostgres(ctx)
}

// unreached says of an error on the way to host at which step it came about;
// false where it is none of them.
func unreached(host string, err error) (verdict, bool) {
	if name, is := errors.AsType[*net.DNSError](err); is {
		return fail("check the name in queue.url and the machine's DNS", "DNS: the name %s cannot be resolved: %s", name.Name, name.Err), true
	}
	if v, is := untrusted(host, err); is {
		return v, true
	}
	if op, is := errors.AsType[*net.OpError](err); is && (op.Op == "dial" || op.Op == "connect") {
		return fail("check host and port in queue.url, and the firewalls between", "TCP: %s does not accept a connection: %v", host, lastError(op.Err)), true
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fail("check host and port in queue.url, and the firewalls between", "%s does not answer in time", host), true
	}
	return verdict{}, false
}

// untrusted is unreached for TLS.
func untrusted(host string, err error) (verdict, bool) {
	if _, is := errors.AsType[x509.UnknownAuthorityError](err); is {
		return fail("name its authority's certificate in queue.ca_file (https) or sslrootcert in queue.url (postgres)",
			"TLS: the certificate of %s is signed by an authority that is not trusted here", host), true
	}
	if wrong, is := errors.AsType[x509.HostnameError](err); is {
		return fail("use the name that the certificate is for", "TLS: %v", wrong), true
	}
	if expired, is := errors.AsType[x509.CertificateInvalidError](err); is {
		return fail("have the certificate renewed, or correct this machine's clock", "TLS: the certificate of %s is not valid: %v", host, expired), true
	}
	if odd, is := errors.AsType[tls.RecordHeaderError](err); is {
		return fail("check the port, and whether TLS is spoken there", "TLS: %s does not speak it: %s", host, odd.Msg), true
	}
	if strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") { // net/http has no type for it
		return fail("check the port, and whether TLS is spoken there", "TLS: %s does not speak it, but plain HTTP", host), true
	}
	if alert, is := errors.AsType[tls.AlertError](err); is {
		return fail("check what TLS versions and client certificates the server wants", "TLS: %s broke the handshake off: %v", host, alert), true
	}
	if _, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		return fail("check the server's certificate", "TLS: the certificate of %s is not accepted: %v", host, err), true
	}
	return verdict{}, false
}

// hostPort is an address for people.
func hostPort(host string, port uint16) string {
	if strings.HasPrefix(host, "/") {
		return fmt.Sprintf("the socket in %s", host)
	}
	return net.JoinHostPort(host, fmt.Sprint(port))
}

// reachHTTP asks for nothing in particular: any answer shows that the way is
// open, and the token's check asks the rest.
func (d *doctor) reachHTTP(ctx context.Context) verdict {
	base, err := url.Parse(d.Config.Queue.URL)
	if err != nil {
		return fail("correct queue.url", "queue.url cannot be read as a URL")
	}
	roots, err := rpcqueue.Authorities(d.Config.Queue.CAFile)
	if err != nil {
		return fail("name a readable file of PEM certificates", "queue.ca_file: %v", err)
	}
	client, proxy := d.client(base, roots)
	defer client.CloseIdleConnections()
	by := ""
	if proxy != "" {
		by = " by way of the proxy " + proxy
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(base.String(), "/")+"/rest/v1/", nil)
	if err != nil {
		return fail("correct queue.url", "queue.url cannot be read as a URL")
	}
	req.Header.Set("apikey", d.Config.Queue.APIKey)
	began := time.Now()
	res, err := client.Do(req)
	if err != nil {
		return d.httpRefused(base.Host, proxy, err)
	}
	_ = res.Body.Close()
	switch {
	case res.StatusCode >= http.StatusInternalServerError:
		return fail("see whether it is up (Supabase: whether the project is paused)", "HTTP: %s answers with status %s%s", base.Host, res.Status, by)
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return fail("set queue.url to where it leads, if that is yours", "HTTP: %s redirects elsewhere (status %s)%s", base.Host, res.Status, by)
	}
	if base.Scheme == "http" && overNetwork(base.Hostname()) {
		return warn("let it be reached by https", "%s answers within %s%s, but not encrypted: anyone who reads the traffic has the cluster's credential", base.Host, since(began), by)
	}
	return ok("%s answers within %s%s", base.Host, since(began), by)
}

// client returns one that reaches an address as the agent does, and the proxy it
// goes through.
func (d *doctor) client(to *url.URL, roots *x509.CertPool) (client *http.Client, proxy string) {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}
	if by, err := http.ProxyFromEnvironment(&http.Request{URL: to}); err == nil && by != nil {
		proxy = by.Host
	}
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}, proxy
}

func (d *doctor) httpRefused(host, proxy string, err error) verdict {
	if v, is := untrusted(host, err); is {
		return v
	}
	if proxy != "" {
		return fail("check HTTPS_PROXY, HTTP_PROXY and NO_PROXY in the agent's environment", "proxy: %s does not lead to %s: %v", proxy, host, lastError(err))
	}
	if v, is := unreached(host, err); is {
		return v
	}
	return fail("check that queue.url is a Supabase project or a trellis serve", "HTTP: %s does not answer as a web server does: %v", host, lastError(err))
}

// reachPostgres connects, and closes again.
func (d *doctor) reachPostgres(ctx context.Context) verdict {
	config, err := pgx.ParseConfig(d.Config.Queue.URL)
	if err != nil {
		return fail("correct queue.url", "queue.url cannot be read: %v", err) // pgx redacts the password
	}
	host := hostPort(config.Host, config.Port)
	config.ConnectTimeout = each - time.Second // so that there is time to say so
	var connected atomic.Bool
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		connected.Store(connected.Load() || err == nil)
		return conn, err
	}
	began := time.Now()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		if connected.Load() && errors.Is(err, context.DeadlineExceeded) {
			return fail("check that a PostgreSQL server listens there, and how it does", "Postgres: %s takes the connection and does not answer in time", host)
		}
		return postgresRefused(host, config, err)
	}
	took := since(began)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	_, encrypted := conn.PgConn().Conn().(interface{ HandshakeContext(context.Context) error })
	server := conn.PgConn().ParameterStatus("server_version")
	_ = conn.Close(closing) // nothing was asked of it
	if !encrypted && overNetwork(config.Host) {
		return warn("add sslmode=verify-full to queue.url", "%s answers within %s (PostgreSQL %s), but the connection is not encrypted", host, took, server)
	}
	return ok("%s answers within %s (PostgreSQL %s)", host, took, server)
}

func postgresRefused(host string, config *pgx.ConnConfig, err error) verdict {
	if pg, answered := errors.AsType[*pgconn.PgError](err); answered {
		switch {
		case strings.HasPrefix(pg.Code, "28"):
			return fail("check the user and password in queue.url", "Postgres: %s lets user %q not in: %s", host, config.User, pg.Message)
		case pg.Code == "3D000":
			return fail("check the database's name in queue.url", "Postgres: %s has no database %q", host, config.Database)
		case pg.Code == "53300":
			return fail("raise max_connections, or put a pooler in front", "Postgres: %s has no connection left: %s", host, pg.Message)
		case pg.Code == "57P03":
			return fail("wait a moment and try again", "Postgres: %s is starting or stopping: %s", host, pg.Message)
		case strings.Contains(pg.Message, "unsupported startup parameter"):
			return fail("remove it from queue.url and set it on the role, by ALTER ROLE … SET", "Postgres: the pooler at %s refuses what queue.url sets: %s", host, pg.Message)
		}
		return fail("see the server's log", "Postgres: %s refuses the connection: %s (SQLSTATE %s)", host, pg.Message, pg.Code)
	}
	if v, is := unreached(host, err); is {
		return v
	}
	if strings.Contains(err.Error(), "server refused TLS connection") {
		return fail("switch TLS on there, or set another sslmode in queue.url", "TLS: %s does not offer it", host)
	}
	return fail("check that a PostgreSQL server listens there", "Postgres: what %s answers is not PostgreSQL's: %v", host, lastError(err))
}

// lastError is the innermost one: the outer ones name host and user again.
func lastError(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

func overNetwork(host string) bool {
	return !strings.HasPrefix(host, "/") && host != "localhost" && host != "::1" && !strings.HasPrefix(host, "127.")
}

// token asks the database how an agent with this token and name would stand. It
// must not register: that would end the agent which runs here.
func (d *doctor) token(ctx context.Context) verdict {
	q, err := d.Open(d.agent())
	if err != nil {
		return fail("correct the queue's settings", "the queue cannot be opened: %v", err)
	}
	defer q.Close()
	before := d.Now()
	standing, err := q.Standing(ctx)
	after := d.Now()
	if missing(err) {
		return d.tokenOnly(ctx, q)
	}
	if err != nil {
		return tokenRefused(err)
	}
	d.standing = &standing
	d.doubt = after.Sub(before) / 2
	d.skew = before.Add(d.doubt).Sub(standing.Now)
	if standing.Paused {
		return warn("have the cluster resumed", "valid for cluster %q, which people have paused: no work is given out", standing.ClusterName)
	}
	by := ""
	if key := d.Config.Queue.Key; key != nil {
		by = ", by this agent's own key: " + key.Words()
	}
	return ok("valid for cluster %q%s", standing.ClusterName, by)
}

// missing reports whether the database does not know the question.
func missing(err error) bool {
	e, is := errors.AsType[*queue.Error](err)
	return is && (e.Code == "42883" || e.Code == "PGRST202")
}

// tokenOnly asks a database that is older than the question. A heartbeat of an
// agent that nobody knows changes nothing, and is refused in one way where the
// token is valid and in another where it is not.
func (d *doctor) tokenOnly(ctx context.Context, q queue.Queue) verdict {
	_, err := q.Heartbeat(ctx, queue.Beat{})
	if e, is := errors.AsType[*queue.Error](err); is && e.Code == "PT409" {
		return ok("valid; the database is older than this program and tells no more")
	}
	if err == nil {
		err = errors.New("the database knows an agent that does not exist")
	}
	return tokenRefused(err)
}

func tokenRefused(err error) verdict {
	e, is := errors.AsType[*queue.Error](err)
	if !is {
		return fail("see the message", "the database cannot be asked: %v", err)
	}
	action := e.Hint
	if action == "" {
		action = "see the database's or the gateway's log"
	}
	return fail(action, "%s", strings.TrimSuffix(e.Message, "."))
}

// agent is who would register: with the instance of the data directory, if it
// can be read, so that an agent which runs here is not taken for another.
func (d *doctor) agent() queue.Agent {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	slots, _ := d.Config.RunsAtOnce()
	return queue.Agent{
		Instance: d.instance(), Boot: uuid.New(), Name: d.Config.Name, Host: host,
		Version: d.Version, Contract: queue.Contract, Slots: slots,
	}
}

// instance is the agent's, or a new one where none can be read.
func (d *doctor) instance() uuid.UUID {
	content, err := os.ReadFile(filepath.Join(d.Config.DataDir, "instance"))
	if err == nil {
		if id, err := uuid.ParseBytes([]byte(strings.TrimSpace(string(content)))); err == nil {
			return id
		}
	}
	return uuid.New()
}

func (d *doctor) contract(context.Context) verdict {
	switch {
	case d.standing == nil:
		return warn(`run "trellis migrate" against it`, "the database is older than this program; whether it serves contract %d shows when an agent registers", queue.Contract)
	case d.standing.Contract == queue.Contract-1:
		return warn(`run "trellis migrate" of this release against it`,
			"the database speaks contract %d, one older than this agent's, %d: it serves the agent, but for what is new", d.standing.Contract, queue.Contract)
	case d.standing.Contract < queue.Contract:
		return fail(`upgrade the control plane and run "trellis migrate", or use an older agent`,
			"this agent speaks contract %d, the database only %d", queue.Contract, d.standing.Contract)
	case d.standing.Contract > queue.Contract:
		return ok("the database speaks contract %d and serves this agent's, %d", d.standing.Contract, queue.Contract)
	}
	return ok("agent and database both speak contract %d", queue.Contract)
}

const (
	// Log lines are shown by the agent's clock, and out of order beyond skewWarn.
	skewWarn = 5 * time.Second
	// Clouds and GitHub refuse requests that are signed by a clock so far off.
	skewFail = time.Minute
)

func (d *doctor) clock(context.Context) verdict {
	if d.standing == nil {
		return skipped("not checked: the database is older than this program")
	}
	off, direction := d.skew, "ahead of"
	if off < 0 {
		off, direction = -off, "behind"
	}
	const action = "let this machine's clock be set by NTP (timedatectl set-ntp true)"
	switch certain := off - d.doubt; {
	case certain > skewFail:
		return fail(action, "this machine's clock is %s %s the database's: clouds refuse what it signs", off.Round(time.Second), direction)
	case certain > skewWarn:
		return warn(action, "this machine's clock is %s %s the database's: logs show wrong times", off.Round(time.Second), direction)
	case certain < 100*time.Millisecond:
		return ok("this machine's clock and the database's agree")
	}
	return ok("this machine's clock is %.1f s %s the database's", off.Seconds(), direction)
}

// publications warns of logical replication of more tables than people may watch:
// Supabase's Realtime tells every subscriber of each row that is deleted.
func (d *doctor) publications(context.Context) verdict {
	switch {
	case d.standing == nil:
		return skipped("not checked: the database is older than this program")
	case len(d.standing.BroadPublications) > 0:
		return warn("have the database's owner name the tables instead, as docs/SUPABASE.md says",
			"%s: all tables are published: when a row is deleted, Supabase's Realtime tells every subscriber, also those who may not read the row", quoted(d.standing.BroadPublications))
	}
	return ok("no publication of the database covers all tables")
}

func quoted(names []string) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = strconv.Quote(name)
	}
	return strings.Join(all, ", ")
}

func (d *doctor) name(context.Context) verdict {
	switch {
	case d.standing == nil:
		return skipped("not checked: the database is older than this program")
	case d.standing.NameTakenOn != "" && d.agentRuns:
		// Its instance could not be read, or two agents are at odds over the name.
		return warn("run this as the user that the agent runs as", "%q is in use by an agent on %s, perhaps the one that runs here", d.Config.Name, d.standing.NameTakenOn)
	case d.standing.NameTakenOn != "":
		return fail("give this agent another name, or stop the other one", "%q is in use by another agent of this cluster, on %s", d.Config.Name, d.standing.NameTakenOn)
	}
	return ok("%q is in use by no other agent of this cluster", d.Config.Name)
}

// wakes says whether the agent hears of work, or has to ask for it.
func (d *doctor) wakes(ctx context.Context) verdict {
	switch {
	case strings.HasPrefix(d.Config.Queue.URL, "http"):
		return d.realtime(ctx)
	case d.Config.Queue.ListenURL == "off":
		return ok("switched off by queue.listen_url; the queue is polled")
	}
	err := pgqueue.Hears(ctx, pgqueue.Options{
		URL: d.Config.Queue.URL, ListenURL: d.Config.Queue.ListenURL, Agent: d.agent(), CallTimeout: each - grace,
	})
	if err == nil {
		return ok("the database's notifications arrive")
	}
	if e, is := errors.AsType[*queue.Error](err); is && e.Hint != "" {
		return warn(e.Hint, "%s; the queue would be polled only", e.Message)
	}
	return warn("check queue.listen_url", "%v; the queue would be polled only", err)
}

// realtime says whether what the database sends by Supabase's Realtime reaches an agent over HTTPS.
func (d *doctor) realtime(ctx context.Context) verdict {
	const polled = "over HTTPS trellis serve holds calls until there is news; without it the queue is polled"
	q := d.Config.Queue
	switch {
	case d.standing == nil:
		return skipped("not checked: the database is older than this program")
	case !d.standing.Realtime:
		return ok(polled)
	}
	err := rpcqueue.Hears(ctx, rpcqueue.Options{
		URL: q.URL, APIKey: q.APIKey, CAFile: q.CAFile, Token: q.Token.Reveal(), Agent: d.agent(), CallTimeout: wakesLimit - 2*time.Second,
	})
	_, refused := errors.AsType[*realtime.RefusedError](err)
	switch {
	case err == nil:
		return ok("what the database sends by Supabase's Realtime arrives")
	case errors.Is(err, rpcqueue.ErrNoRealtime), errors.Is(err, realtime.ErrAbsent):
		return ok("%s: %v", polled, err) // such as trellis before a project's database
	case refused:
		return warn("check queue.api_key, and in the project's Realtime settings that public access is allowed", "%v; the queue would be polled only", err)
	}
	return warn("see docs/SUPABASE.md on how agents are woken", "Supabase's Realtime: %v; the queue would be polled only", err)
}
