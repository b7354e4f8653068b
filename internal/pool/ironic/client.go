package ironic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/baremetal/httpbasic"
	"github.com/gophercloud/gophercloud/v2/openstack/baremetal/noauth"
	"go.yaml.in/yaml/v3"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/retry"
	"github.com/tendril-run/tendril/internal/secretfile"
)

const (
	// mostBytes bounds one answer. A thousand nodes with their properties are some 3 MB.
	mostBytes = 16 << 20
	// oldest and newest are the API's microversions, 1.N, that this can live with, and that it
	// knows. 1.56 has allocations and config drives as JSON objects; 1.69 has deploy steps.
	oldest, newest                           = 56, 82
	withDeploySteps, withLessee, withRetired = 69, 65, 61
	// actionPatience is how long one request is tried again; awayPatience, one of those that only
	// ask how a deployment goes, which needs nobody.
	actionPatience, awayPatience = 3 * time.Minute, 30 * time.Minute
)

// client sends requests to one Ironic. It is for several goroutines at once.
type client struct {
	config pool.Config
	http   *http.Client
	pace   float64

	mu      sync.Mutex
	api     *gophercloud.ServiceClient // nil: not opened yet
	glance  *gophercloud.ServiceClient // where Keystone's catalogue has it
	version int                        // of the API, 1.N
	who     string                     // as whom, for people
}

func newClient(c pool.Config, pace float64) (*client, error) {
	if c.URL != "" {
		u, err := url.Parse(c.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return nil, errors.New("url: write https://HOST:6385, without user, password or query")
		}
	}
	settings, err := c.TLS()
	if err != nil {
		return nil, err
	}
	if c.Timeout <= 0 {
		c.Timeout = time.Minute
	}
	cl := &client{config: c, pace: pace}
	cl.http = &http.Client{
		Timeout: c.Timeout,
		Transport: bounded{&http.Transport{
			TLSClientConfig: settings, MaxIdleConnsPerHost: 8, MaxConnsPerHost: 32, IdleConnTimeout: time.Minute,
			TLSHandshakeTimeout: 20 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		}},
		// What redirects is a page in front of Ironic, and gets no credentials.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	_, err = cl.identity()
	return cl, err
}

// errTooLarge ends the reading of an answer without end.
var errTooLarge = fmt.Errorf("the answer has more than %d MiB, which none of Ironic's has; check that the url leads to Ironic", mostBytes>>20)

// bounded bounds answers, errors included.
type bounded struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err == nil {
		resp.Body = &limited{body: resp.Body, left: mostBytes}
	}
	return resp, err
}

type limited struct {
	body io.ReadCloser
	left int
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooLarge
	}
	n, err := l.body.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// Close implements io.Closer. What is left is not read: it may have no end.
func (l *limited) Close() error { return l.body.Close() }

// identity is who the agent is at Ironic: nobody, a user with a password, or an application
// credential of Keystone's.
type identity struct {
	user, password string

	AuthURL   string `yaml:"auth_url"`
	ID        string `yaml:"application_credential_id"`
	Secret    string `yaml:"application_credential_secret"`
	Region    string `yaml:"region_name"`
	Interface string `yaml:"interface"`
}

// identity reads the token file, which is one line USER:PASSWORD, or an application credential in
// YAML or JSON as OpenStack's clouds.yaml has it. Its errors quote nothing of it.
func (c *client) identity() (who identity, err error) {
	text := c.config.Token
	if text == "" && c.config.TokenFile != "" {
		if text, err = secretfile.Read(c.config.TokenFile); err != nil {
			return who, fmt.Errorf("token file %s %w", c.config.TokenFile, err)
		}
	}
	text = strings.TrimSpace(text)
	if text == "" && c.config.TokenFile == "" {
		if c.config.URL == "" {
			return who, errors.New("url: missing; write https://HOST:6385")
		}
		return who, nil
	}
	if user, password, is := strings.Cut(text, ":"); is && !strings.ContainsAny(text, "\n{") {
		if user == "" || password == "" || c.config.URL == "" {
			return who, fmt.Errorf("token file %s: one line USER:PASSWORD needs both, and a url", c.config.TokenFile)
		}
		return identity{user: user, password: password}, nil
	}
	type cloud struct {
		identity `yaml:",inline"`
		Auth     identity `yaml:"auth"`
	}
	var file struct {
		cloud  `yaml:",inline"`
		Clouds map[string]cloud `yaml:"clouds"`
	}
	wrong := fmt.Errorf("token file %s: write one line USER:PASSWORD, or an application credential as clouds.yaml has it, with auth_url, application_credential_id and application_credential_secret", c.config.TokenFile)
	if yaml.Unmarshal([]byte(text), &file) != nil || len(file.Clouds) > 1 {
		return who, wrong
	}
	one := file.cloud
	for _, only := range file.Clouds {
		one = only
	}
	who = one.identity
	if one.Auth.AuthURL != "" {
		who.AuthURL, who.ID, who.Secret = one.Auth.AuthURL, one.Auth.ID, one.Auth.Secret
	}
	u, err := url.Parse(who.AuthURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || who.ID == "" || who.Secret == "" {
		return who, wrong
	}
	return who, nil
}

// service is Ironic's API, opened at the first call: signed in, and its version agreed on.
func (c *client) service(ctx context.Context) (*gophercloud.ServiceClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.api != nil {
		return c.api, nil
	}
	who, err := c.identity()
	if err != nil {
		return nil, err
	}
	api, images, name, err := c.open(ctx, who)
	if err != nil {
		return nil, err
	}
	var root struct {
		Version struct {
			Min string `json:"min_version"`
			Max string `json:"version"`
		} `json:"version"`
	}
	if err := get(ctx, api, api.ResourceBaseURL(), &root); err != nil {
		return nil, err
	}
	least, err1 := minor(root.Version.Min)
	most, err2 := minor(root.Version.Max)
	switch {
	case err1 != nil || err2 != nil:
		return nil, &problem{class: classAlien, text: "what answers names no version of its API, so it is not Ironic; check that the url leads to Ironic itself"}
	case most < oldest:
		return nil, &problem{class: classAlien, text: fmt.Sprintf("Ironic's API is 1.%d, and 1.%d is the oldest that has allocations and config drives as needed here; upgrade Ironic", most, oldest)}
	case least > newest:
		return nil, &problem{class: classAlien, text: fmt.Sprintf("Ironic's API begins at 1.%d, and this agent knows it up to 1.%d; upgrade the agent", least, newest)}
	}
	c.version = min(most, newest)
	api.Microversion = "1." + strconv.Itoa(c.version)
	c.api, c.glance, c.who = api, images, name
	return c.api, nil
}

func (c *client) open(ctx context.Context, who identity) (api, images *gophercloud.ServiceClient, name string, err error) {
	endpoint := strings.TrimRight(c.config.URL, "/")
	if !strings.HasSuffix(endpoint, "/v1") {
		endpoint += "/v1"
	}
	switch {
	case who.AuthURL != "":
		provider, err := openstack.NewClient(who.AuthURL)
		if err != nil {
			return nil, nil, "", err
		}
		provider.HTTPClient = *c.http
		options := gophercloud.AuthOptions{IdentityEndpoint: who.AuthURL, ApplicationCredentialID: who.ID, ApplicationCredentialSecret: who.Secret, AllowReauth: true}
		if err := openstack.Authenticate(ctx, provider, options); err != nil {
			return nil, nil, "", fmt.Errorf("sign in to Keystone at %s: %w", who.AuthURL, err)
		}
		where := gophercloud.EndpointOpts{Region: who.Region, Availability: gophercloud.Availability(who.Interface)}
		if c.config.URL != "" {
			api = &gophercloud.ServiceClient{ProviderClient: provider, Endpoint: gophercloud.NormalizeURL(endpoint), Type: "baremetal"}
		} else if api, err = openstack.NewBareMetalV1(provider, where); err != nil {
			if _, missing := errors.AsType[*gophercloud.ErrEndpointNotFound](err); missing {
				err = &problem{class: classAlien, text: "Keystone's catalogue has no service baremetal" + forRegion(who.Region) + "; set url in [[pools]]"}
			}
			return nil, nil, "", err
		}
		if images, err = openstack.NewImageV2(provider, where); err != nil {
			images = nil // the catalogue has none: images are those of [[pools.images]]
		}
		return api, images, "application credential " + who.ID, nil
	case who.user != "":
		api, err = httpbasic.NewBareMetalHTTPBasic(httpbasic.EndpointOpts{IronicEndpoint: endpoint, IronicUser: who.user, IronicUserPassword: who.password})
		name = "user " + who.user
	default:
		api, err = noauth.NewBareMetalNoAuth(noauth.EndpointOpts{IronicEndpoint: endpoint})
		name = "nobody: this Ironic asks for no credentials"
	}
	if err != nil {
		return nil, nil, "", err
	}
	api.HTTPClient, api.Type = *c.http, "baremetal"
	return api, nil, name, nil
}

func forRegion(region string) string {
	if region == "" {
		return ""
	}
	return " in the region " + region
}

// minor is N of a version 1.N.
func minor(version string) (int, error) {
	text, is := strings.CutPrefix(version, "1.")
	if !is {
		return 0, errors.New("no version 1.N")
	}
	return strconv.Atoi(text)
}

// forget has the next call sign in again: the credentials may have been replaced.
func (c *client) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.api, c.glance = nil, nil
}

// agreed is the version of the API, 1.N; 0 before the first call.
func (c *client) agreed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// get reads what is at an address, as JSON.
func get(ctx context.Context, api *gophercloud.ServiceClient, address string, into any) error {
	_, err := api.Get(ctx, address, into, nil) //nolint:bodyclose // gophercloud closes what it decodes
	return err
}

// once sends one request. do is given Ironic's API.
func (c *client) once(ctx context.Context, what string, do func(context.Context, *gophercloud.ServiceClient) error) error {
	api, err := c.service(ctx)
	if err == nil {
		err = do(ctx, api)
	}
	if err != nil {
		return c.explain(ctx, what, err)
	}
	return nil
}

// call sends a request that may be sent twice, until it is answered or its time is over.
func (c *client) call(ctx context.Context, what string, do func(context.Context, *gophercloud.ServiceClient) error) error {
	return c.patient(ctx, what, c.scaled(actionPatience), nil, nil, do)
}

// change is call of a request that changes a server. Between two tries it may have become somebody
// else's, so before each repeat it is read, and where still says no, that is pool.ErrForeign.
func (c *client) change(ctx context.Context, what string, n *node, still func(now *node) bool, do func(context.Context, *gophercloud.ServiceClient) error) error {
	return c.patient(ctx, what, c.scaled(actionPatience), nil, func(ctx context.Context, api *gophercloud.ServiceClient) error {
		now, err := c.node(ctx, api, n.UUID)
		if err == nil && !still(now) {
			err = foreign(now)
		}
		return err
	}, do)
}

// foreign says that a server is no longer the one that a request is meant for.
func foreign(now *node) error {
	return fmt.Errorf("the server %s is another's by now (%s): %w", now, cmp.Or(clean(now.InstanceUUID), "it has no instance"), pool.ErrForeign)
}

// patient repeats a call for up to patience. It calls waits with the first error after which it
// tries again, and again before each repeat; an error of again ends the repeat. Both may be nil.
func (c *client) patient(ctx context.Context, what string, patience time.Duration, waits func(error), again, do func(context.Context, *gophercloud.ServiceClient) error) error {
	pauses := retry.Between(c.scaled(300*time.Millisecond), c.scaled(8*time.Second))
	began, refused := time.Now(), false
	for tries := 1; ; tries++ {
		err := c.once(ctx, what, func(ctx context.Context, api *gophercloud.ServiceClient) error {
			if tries > 1 && again != nil {
				if err := again(ctx, api); err != nil {
					return err
				}
			}
			return do(ctx, api)
		})
		var p *problem
		switch {
		case err == nil || !errors.As(err, &p):
			return err
		case p.class == classDenied && !refused:
			refused = true
			c.forget()
			continue
		case !p.class.passes() || tries > 1 && time.Since(began) > patience:
			return err
		}
		if waits != nil {
			waits(err)
			waits = nil
		}
		if !retry.Sleep(ctx, pauses.NextBackOff()) {
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

// scaled is a wait, shorter in tests.
func (c *client) scaled(d time.Duration) time.Duration { return time.Duration(float64(d) / c.pace) }

// clean shortens a server's text for a message.
var clean = pool.Clean

// local reports whether what is sent to an address stays on this machine.
func local(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// address is where Ironic's API is, and signedIn as whom it is asked.
func (c *client) address() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.api == nil {
		return c.config.URL
	}
	return c.api.ResourceBaseURL()
}

func (c *client) signedIn() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.who
}
