package ironic

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/provisioner"
)

// root is what Ironic answers at /v1/.
const root = `{"name":"OpenStack Ironic API","id":"v1","version":{"id":"v1","min_version":"1.1","version":"1.82","status":"CURRENT"}}`

// fakeID is the one server of a fake.
const fakeID = "11111111-2222-4333-8444-555555555555"

// served is a driver of an API that answers as each test says, in the form of Ironic's.
func served(t *testing.T, pace float64, answer http.HandlerFunc) *Driver {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/" {
			_, _ = w.Write([]byte(root))
			return
		}
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	d, err := open(pool.Config{Name: "metal", Kind: "ironic", URL: server.URL, Timeout: patience.For(20 * time.Second)}, pace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func says(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fault, _ := json.Marshal(map[string]any{"faultcode": "Client", "faultstring": text, "debuginfo": nil})
	_ = json.NewEncoder(w).Encode(map[string]any{"error_message": string(fault)})
}

// Each answer that is no success has its class, is tried again or not as the table says, and tells
// its reader what to do.
func TestClassesOfAnswers(t *testing.T) {
	t.Parallel()
	endless := func(w http.ResponseWriter, prefix string) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(prefix))
		for range 3 * mostBytes >> 20 {
			if _, err := w.Write([]byte(strings.Repeat("x", 1<<20))); err != nil {
				return
			}
		}
	}
	for name, c := range map[string]struct {
		class  *class
		answer http.HandlerFunc
		says   string
	}{
		"locked": {classLocked, func(w http.ResponseWriter, _ *http.Request) {
			says(w, 409, "Node n is locked by host c1, please retry after the current operation is completed.")
		}, "locked by host c1"},
		"no conductor": {classNobody, func(w http.ResponseWriter, _ *http.Request) {
			says(w, 400, "No conductor service registered which supports driver redfish")
		}, "start ironic-conductor"},
		"no free worker": {classNobody, func(w http.ResponseWriter, _ *http.Request) {
			says(w, 503, "Requested action cannot be performed due to lack of free conductor workers.")
		}, "lack of free"},
		"500": {classBroken, func(w http.ResponseWriter, _ *http.Request) { says(w, 500, "database is locked") }, "database is locked"},
		"502 of a proxy": {classBroken, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = w.Write([]byte("<html>Bad Gateway</html>"))
		}, "ironic-api"},
		"HTML": {classPage, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>Sign in</html>")) }, "no page in front"},
		"500 in HTML": {classPage, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("<html>Oops</html>"))
		}, "no JSON"},
		"another form": {classPage, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"nodes": 7}`)) }, "no JSON of Ironic's"},
		"cut off": {classAway, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "900")
			_, _ = w.Write([]byte(`{"nodes": [`))
		}, "reaches the url"},
		"denied": {classDenied, func(w http.ResponseWriter, _ *http.Request) {
			says(w, 401, "The request you have made requires authentication.")
		}, "token_file"},
		"not allowed": {classMay, func(w http.ResponseWriter, _ *http.Request) { says(w, 403, "Node n is protected") }, "protected"},
		"missing":     {classMissing, func(w http.ResponseWriter, _ *http.Request) { says(w, 404, "Node n could not be found.") }, "could not be found"},
		"in use":      {classConflict, func(w http.ResponseWriter, _ *http.Request) { says(w, 409, "Node n is associated with instance i.") }, "who uses it"},
		"invalid": {classRefused, func(w http.ResponseWriter, _ *http.Request) {
			says(w, 500, "Failed to rescue instance 1 for node 2: Validation failed: Driver fake-hardware does not support rescue (disabled or not implemented).")
		}, "block ironic"},
		"refused": {classRefused, func(w http.ResponseWriter, _ *http.Request) { says(w, 400, "Cannot validate") }, "block ironic"},
		"a redirect": {classRedirect, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, "redirect"},
		"without an end": {classLarge, func(w http.ResponseWriter, _ *http.Request) { endless(w, `{"nodes": [{"uuid": "`) }, "more than 16 MiB"},
		"an endless list": {classLarge, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"nodes":[{"uuid":%q}],"next":"http://elsewhere/"}`, fakeID)
		}, "repeats itself"},
		"an endless error": {classPage, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			endless(w, "x")
		}, "no JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			d := served(t, 2000, func(w http.ResponseWriter, r *http.Request) { asked.Add(1); c.answer(w, r) })
			_, err := d.all(t.Context())
			p, has := asProblem(err)
			if !has || p.class != c.class {
				t.Fatalf("List = %v of the class %v, want %q", err, p, c.class.name)
			}
			if !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), c.class.does) || strings.Contains(err.Error(), "<html>") {
				t.Errorf("%q does not say %q and what to do", err, c.says)
			}
			if unknown := errors.Is(err, pool.ErrUnreachable); unknown == slices.Contains([]*class{classLocked, classMissing, classConflict, classRefused}, c.class) {
				t.Errorf("that nothing is known is %t", unknown)
			}
			// What is done with a server is tried again, if the class passes.
			once := asked.Swap(0)
			_, err = d.marked(t.Context(), fakeID)
			if err == nil {
				t.Fatal("it succeeded")
			}
			if again := asked.Load() > once; again != c.class.passes() && c.class != classDenied {
				t.Errorf("it was asked %d times, and its class says %q", asked.Load(), c.class.tried)
			}
			if c.class == classDenied && asked.Load() != 2 {
				t.Errorf("it was asked %d times, want once more with the credentials as they are now", asked.Load())
			}
		})
	}
}

// However a list is cut into pages, it is read up to a number of nodes, and of bytes.
func TestListsAreBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pages, nodes, padding int // of each page nodes, of each node bytes
		says                  string
	}{
		"as many as may be": {2, mostNodes / 2, 0, ""},
		"too many nodes":    {2, mostNodes/2 + 1, 0, "more than 10000 nodes"},
		"too many bytes":    {5, 1, 15 << 20, "more than 64 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page := 0
			d := served(t, 2000, func(w http.ResponseWriter, _ *http.Request) {
				page++
				_, _ = fmt.Fprint(w, `{"nodes":[`)
				for n := range c.nodes {
					if n > 0 {
						_, _ = fmt.Fprint(w, ",")
					}
					_, _ = fmt.Fprintf(w, `{"uuid":"%08x-0000-4000-8000-%012x","last_error":%q}`, page, n, strings.Repeat("x", c.padding))
				}
				next := "http://ironic/next"
				if page == c.pages {
					next = ""
				}
				_, _ = fmt.Fprintf(w, `],"next":%q}`, next)
			})
			all, err := d.all(t.Context())
			if (err == nil) != (c.says == "") || c.says != "" && (!is(err, classLarge) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("List = %d nodes, %v, want %q", len(all), err, c.says)
			}
			if c.says == "" && len(all) != c.pages*c.nodes {
				t.Errorf("List = %d nodes, want %d", len(all), c.pages*c.nodes)
			}
		})
	}
}

// A server that does not answer is given up after the pool's time limit, and a context that ends,
// at once.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	d := served(t, 1, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	d.client.config.Timeout, d.client.http.Timeout = 200*time.Millisecond, 200*time.Millisecond
	if _, err := d.all(t.Context()); !is(err, classAway) || !strings.Contains(err.Error(), "no complete answer within 200ms") {
		t.Errorf("List = %v", err)
	}
	d.client.http.Timeout = time.Hour
	d.client.forget()
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(errors.New("the run is over")) })
	if _, err := d.marked(ctx, fakeID); err == nil || !strings.Contains(err.Error(), "the run is over") {
		t.Errorf("Look = %v, want the context's cause", err)
	}
}

// What passes is waited for, and a lock is one of these.
func TestLockedServersAreWaitedFor(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	d := served(t, 100, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) < 4 {
			says(w, 409, "Node n is locked by host c1, please retry")
			return
		}
		_, _ = w.Write([]byte(`{"nodes":[]}`))
	})
	if n, err := d.marked(t.Context(), fakeID); n != nil || err != nil || asked.Load() != 4 {
		t.Errorf("Look = %v, %v after %d requests", n, err, asked.Load())
	}
}

// Nobody says that a machine is gone but an Ironic that answered.
func TestGoneOnlyWhereIronicAnswered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		body   string
		want   error
	}{
		"it answers":  {200, `{"nodes":[]}`, pool.ErrGone},
		"404 of HTML": {404, `<html>not here</html>`, pool.ErrUnreachable},
		"500":         {500, `{"error_message": "no"}`, pool.ErrUnreachable},
		"empty":       {200, ``, pool.ErrUnreachable},
		"no list":     {200, `{}`, pool.ErrUnreachable},
		"null":        {200, `null`, pool.ErrUnreachable},
		"a null list": {200, `{"nodes":null}`, pool.ErrUnreachable},
		"maintenance": {200, `{"status":"maintenance"}`, pool.ErrUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := served(t, 2000, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(c.status); _, _ = w.Write([]byte(c.body)) })
			if _, err := d.Look(t.Context(), pool.Ref{ID: fakeID, Name: "web"}); !errors.Is(err, c.want) {
				t.Errorf("Look = %v, want %v", err, c.want)
			}
			if n, err := d.read(t.Context(), fakeID); errors.Is(c.want, pool.ErrUnreachable) && !errors.Is(err, c.want) {
				t.Errorf("the server is read as %+v, %v, want %v", n, err, c.want)
			}
		})
	}
}

// An API that this does not know, or that is no Ironic's, is named.
func TestVersions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		root, says string
		agreed     int
	}{
		"an older one":  {`{"version":{"min_version":"1.1","version":"1.58"}}`, "", 58},
		"a newer one":   {`{"version":{"min_version":"1.1","version":"1.120"}}`, "", newest},
		"too old":       {`{"version":{"min_version":"1.1","version":"1.38"}}`, "1.56 is the oldest", 0},
		"too new":       {`{"version":{"min_version":"1.200","version":"1.220"}}`, "upgrade the agent", 0},
		"another thing": {`{"hello":"world"}`, "it is not Ironic", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/" {
					_, _ = w.Write([]byte(c.root))
					return
				}
				if got, want := r.Header.Get("X-OpenStack-Ironic-API-Version"), fmt.Sprint("1.", c.agreed); got != want {
					t.Errorf("%s was asked with the version %q, want %q", r.URL, got, want)
				}
				if strings.HasSuffix(r.URL.Path, "/nodes") && strings.Contains(r.URL.RawQuery, "lessee") != (c.agreed >= withLessee) {
					t.Errorf("it was asked for %s", r.URL.RawQuery)
				}
				_, _ = w.Write([]byte(`{"nodes":[],"conductors":[{"hostname":"c1","alive":true}]}`))
			}))
			t.Cleanup(server.Close)
			d, err := open(pool.Config{Name: "metal", URL: server.URL}, 100)
			if err != nil {
				t.Fatal(err)
			}
			_, err = d.all(t.Context())
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) || d.client.agreed() != c.agreed {
				t.Errorf("List = %v with 1.%d, want %q and 1.%d", err, d.client.agreed(), c.says, c.agreed)
			}
			if c.agreed > 0 {
				steps := json.RawMessage(`{"bios": {"Boot": "Uefi"}}`)
				s, _ := parse(steps)
				if err := d.versionFor(&s); (err == nil) != (c.agreed >= withDeploySteps) {
					t.Errorf("steps of the BIOS with 1.%d: %v", c.agreed, err)
				}
				named := slices.ContainsFunc(d.Check(t.Context()), func(f pool.Finding) bool {
					return f.What == "reach" && strings.Contains(f.Detail, fmt.Sprint("1.", c.agreed))
				})
				if !named {
					t.Errorf("Check does not name the version 1.%d", c.agreed)
				}
			}
		})
	}
}

func secret(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A user and a password of the token file go to Ironic alone, by a certificate that is known.
func TestHTTPBasicOverTLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch user, password, _ := r.BasicAuth(); {
		case user != "tendril" || password != "s3:cret":
			says(w, 401, "Incorrect username or password")
		case r.URL.Path == "/v1/":
			_, _ = w.Write([]byte(root))
		default:
			_, _ = w.Write([]byte(`{"nodes":[]}`))
		}
	}))
	t.Cleanup(server.Close)
	certificate := server.Certificate()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}))
	print := fmt.Sprintf("%x", sha256.Sum256(certificate.Raw))
	for name, c := range map[string]struct {
		config pool.Config
		says   string
	}{
		"by its CA":               {pool.Config{CA: ca, Token: "tendril:s3:cret"}, ""},
		"by its fingerprint":      {pool.Config{Fingerprint: print, TokenFile: secret(t, "tendril:s3:cret\n")}, ""},
		"another fingerprint":     {pool.Config{Fingerprint: strings.Repeat("ab", 32), Token: "tendril:s3:cret"}, "not the configured one"},
		"a certificate of nobody": {pool.Config{Token: "tendril:s3:cret"}, "ca_file"},
		"another password":        {pool.Config{CA: ca, Token: "tendril:wrong"}, "credentials"},
		"unchecked":               {pool.Config{Insecure: true, Token: "tendril:s3:cret"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.config.Name, c.config.URL = "metal", server.URL
			d, err := open(c.config, 2000)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = d.Close() })
			_, err = d.all(t.Context())
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("List = %v, want %q", err, c.says)
			}
			if err != nil && strings.Contains(err.Error(), "wrong") {
				t.Errorf("the error has the password: %v", err)
			}
		})
	}
}

// keystone is an identity service with a catalogue, Ironic and Glance behind it, in the documented
// form of their wires.
func keystone(t *testing.T, catalogue ...string) (*httptest.Server, *atomic.Int32) {
	t.Helper()
	var tokens atomic.Int32
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/identity/v3/auth/tokens" && r.Method == http.MethodPost {
			var body struct {
				Auth struct {
					Identity struct {
						Methods    []string `json:"methods"`
						Credential struct {
							ID     string `json:"id"`
							Secret string `json:"secret"`
						} `json:"application_credential"`
					} `json:"identity"`
				} `json:"auth"`
			}
			_ = json.NewDecoder(r.Body).Decode(&body)
			if got := body.Auth.Identity; !slices.Equal(got.Methods, []string{"application_credential"}) || got.Credential.ID != "cred" || got.Credential.Secret != "s3cret" {
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = w.Write([]byte(`{"error":{"code":401,"message":"The request you have made requires authentication.","title":"Unauthorized"}}`))
				return
			}
			var services []string
			for _, kind := range catalogue {
				services = append(services, fmt.Sprintf(`{"type":%q,"id":"s-%s","name":%q,"endpoints":[{"id":"e","interface":"public","region":"lab","region_id":"lab","url":"%s/%s"}]}`, kind, kind, kind, server.URL, kind))
			}
			w.Header().Set("X-Subject-Token", fmt.Sprint("token-", tokens.Add(1)))
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"token":{"methods":["application_credential"],"expires_at":"2099-01-01T00:00:00.000000Z","catalog":[%s]}}`, strings.Join(services, ","))
			return
		}
		if r.Header.Get("X-Auth-Token") != fmt.Sprint("token-", tokens.Load()) {
			says(w, 401, "no such token")
			return
		}
		switch {
		case r.URL.Path == "/baremetal/":
			_, _ = fmt.Fprintf(w, `{"name":"OpenStack Ironic API","default_version":{"id":"v1"},"versions":[{"id":"v1","links":[{"href":"%s/baremetal/v1/","rel":"self"}],"status":"CURRENT","min_version":"1.1","version":"1.82"}]}`, server.URL)
		case r.URL.Path == "/image/":
			w.WriteHeader(http.StatusMultipleChoices)
			_, _ = fmt.Fprintf(w, `{"versions":[{"id":"v2.16","status":"CURRENT","links":[{"rel":"self","href":"%s/image/v2/"}]}]}`, server.URL)
		case r.URL.Path == "/baremetal/v1/":
			_, _ = w.Write([]byte(root))
		case r.URL.Path == "/baremetal/v1/nodes":
			_, _ = fmt.Fprintf(w, `{"nodes":[{"uuid":%q,"name":"n1","provision_state":"available","power_state":"power off","resource_class":"bm"}]}`, fakeID)
		case strings.HasPrefix(r.URL.Path, "/image/v2/images"):
			next := `,"next":"/v2/images?marker=aaaaaaaa-0000-4000-8000-000000000001"`
			page := `{"id":"aaaaaaaa-0000-4000-8000-000000000001","name":"debian","status":"active","created_at":"2024-01-01T00:00:00Z","updated_at":"2024-01-01T00:00:00Z"}`
			if r.URL.Query().Get("marker") != "" {
				next = ""
				page = strings.ReplaceAll(page, "0001", "0002") + "," + strings.ReplaceAll(strings.ReplaceAll(page, "0001", "0003"), "debian", "twice") + "," + strings.ReplaceAll(strings.ReplaceAll(page, "0001", "0004"), "debian", "twice")
				page = strings.Replace(page, `"debian"`, `"alma"`, 1)
			}
			_, _ = fmt.Fprintf(w, `{"images":[%s],"first":"/v2/images"%s}`, page, next)
		default:
			says(w, 404, "nothing is at "+r.URL.Path)
		}
	}))
	t.Cleanup(server.Close)
	return server, &tokens
}

// An application credential opens what Keystone's catalogue has: Ironic, and Glance's images.
func TestKeystoneAndGlance(t *testing.T) {
	t.Parallel()
	server, tokens := keystone(t, "baremetal", "image")
	for name, text := range map[string]string{
		"clouds.yaml": "clouds:\n  openstack:\n    auth_type: v3applicationcredential\n    auth:\n      auth_url: " + server.URL + "/identity/v3\n      application_credential_id: cred\n      application_credential_secret: s3cret\n    region_name: lab\n    interface: public\n    identity_api_version: 3\n",
		"JSON":        fmt.Sprintf(`{"auth_url": %q, "application_credential_id": "cred", "application_credential_secret": "s3cret"}`, server.URL+"/identity/v3"),
	} {
		t.Run(name, func(t *testing.T) {
			d, err := open(pool.Config{Name: "metal", Token: text, Images: []pool.ImageSource{{Name: "own", Source: "http://images/own.raw"}}}, 2000)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = d.Close() })
			inventory, err := d.List(t.Context())
			if err != nil || len(inventory.Nodes) != 1 {
				t.Fatalf("List = %+v, %v", inventory, err)
			}
			var names []string
			for _, i := range inventory.Nodes[0].Images {
				names = append(names, i.Name)
			}
			if want := []string{"own", "debian", "alma", "twice"}; len(names) < len(want) || !slices.Equal(names[:len(want)], want) || !slices.Contains(names[len(want):], "aaaaaaaa-0000-4000-8000-000000000001") {
				t.Errorf("the images are %q, want %q and their ids", names, want)
			}
			for name, want := range map[string]string{"own": "http://images/own.raw", "debian": "aaaaaaaa-0000-4000-8000-000000000001", "aaaaaaaa-0000-4000-8000-000000000002": "aaaaaaaa-0000-4000-8000-000000000002"} {
				if image, err := d.image(t.Context(), name); err != nil || image.Source != want {
					t.Errorf("the image %s is at %q, %v, want %q", name, image.Source, err, want)
				}
			}
			for name, says := range map[string]string{"debain": `did you mean "debian"`, "twice": "2 images named twice"} {
				_, err := d.image(t.Context(), name)
				if coded, has := errors.AsType[*pool.CodeError](err); !has || coded.Code != provision.CodeImageNotFound || !strings.Contains(err.Error(), says) {
					t.Errorf("the image %s: %v, want %q", name, err, says)
				}
			}
			// A token that ended is replaced.
			tokens.Add(1)
			if _, err := d.List(t.Context()); err != nil {
				t.Errorf("after its token ended: %v", err)
			}
		})
	}
	for text, says := range map[string]string{
		"":                       "url: missing",
		"tendril":                "application credential",
		"clouds: {a: {}, b: {}}": "application credential",
		`{"auth_url": "ftp://x", "application_credential_id": "a", "application_credential_secret": "very-secret"}`: "application credential",
	} {
		if _, err := open(pool.Config{Name: "metal", Token: text}, 1); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "very-secret") {
			t.Errorf("open with %q = %v, want %q", text, err, says)
		}
	}
	wrong := fmt.Sprintf(`{"auth_url": %q, "application_credential_id": "cred", "application_credential_secret": "wrong-one"}`, server.URL+"/identity/v3")
	d, err := open(pool.Config{Name: "metal", Token: wrong}, 2000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.List(t.Context()); !is(err, classDenied) || strings.Contains(err.Error(), "wrong-one") {
		t.Errorf("List with a wrong secret = %v", err)
	}
	empty, _ := keystone(t)
	d, err = open(pool.Config{Name: "metal", Token: strings.ReplaceAll(wrong, server.URL, empty.URL)}, 2000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.List(t.Context()); !is(err, classDenied) {
		t.Errorf("List = %v", err)
	}
	d, err = open(pool.Config{Name: "metal", Token: strings.ReplaceAll(strings.ReplaceAll(wrong, server.URL, empty.URL), "wrong-one", "s3cret")}, 2000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.List(t.Context()); !is(err, classAlien) || !strings.Contains(err.Error(), "no service baremetal") {
		t.Errorf("List without an Ironic in the catalogue = %v", err)
	}
}

// quiet hears nothing.
type quiet struct{}

func (quiet) Step(string, string, int) {}
func (quiet) Log(string, ...any)       {}
func (quiet) Secret(string)            {}

// A conductor that ends while it switches the power is asked once more when it is back.
func TestPowerWhileTheConductorEnds(t *testing.T) {
	t.Parallel()
	const mark = "1be26c0b-03f2-4d2e-ae87-c02d7f33c123"
	var asked atomic.Int32
	d := served(t, 2000, func(w http.ResponseWriter, r *http.Request) {
		power, failed := "power off", ""
		switch n := asked.Load(); {
		case r.Method == http.MethodPut:
			asked.Add(1)
			w.WriteHeader(http.StatusAccepted)
			return
		case n == 1:
			failed = "Pending power operation was aborted due to conductor restart"
		case n > 1:
			power = "power on"
		}
		node := fmt.Sprintf(`{"uuid":%q,"name":"n1","instance_uuid":%q,"provision_state":"active","power_state":%q,"last_error":%q,"extra":{"tendril_machine":%q}}`, fakeID, mark, power, failed, mark)
		if strings.HasSuffix(r.URL.Path, fakeID) {
			_, _ = w.Write([]byte(node))
			return
		}
		_, _ = fmt.Fprintf(w, `{"nodes":[%s]}`, node)
	})
	found, err := d.Power(t.Context(), pool.Ref{ID: mark, Name: "n"}, provisioner.PowerStart, quiet{})
	if err != nil || found.Status != provisioner.StatusRunning || asked.Load() != 2 {
		t.Errorf("Power = %+v, %v after %d requests, want it on after two", found, err, asked.Load())
	}
}
