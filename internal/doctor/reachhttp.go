package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
)

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
		return warn("let it be reached by https", "%s answers within %s%s, but not encrypted: whoever reads the traffic has the cluster's credential", base.Host, since(began), by)
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
