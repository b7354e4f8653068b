//go:build metal

package ironic

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/provisioner"
)

// faulty is a proxy in front of Ironic that has every third answer go wrong, in one way after the
// other. What is asked for is done before some of the answers are lost, as with a proxy that dies.
type faulty struct {
	proxy    *httputil.ReverseProxy
	requests atomic.Int64
	mu       sync.Mutex
	did      map[string]int
}

var ways = []string{"409", "500", "503", "HTML", "cut", "lost", "slow", "1 GB", "504"}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := f.requests.Add(1)
	if n%3 != 0 || r.URL.Path == "/v1/" {
		f.proxy.ServeHTTP(w, r)
		return
	}
	how := ways[rand.IntN(len(ways))]
	f.mu.Lock()
	f.did[how]++
	f.mu.Unlock()
	switch how {
	case "409":
		says(w, 409, "Node n is locked by host somebody, please retry after the current operation is completed.")
	case "500":
		says(w, 500, "(sqlite3.OperationalError) database is locked")
	case "503":
		says(w, 503, "Requested action cannot be performed due to lack of free conductor workers.")
	case "HTML":
		_, _ = w.Write([]byte("<html><title>Sign in</title></html>"))
	case "cut", "lost":
		answer := httptest.NewRecorder()
		f.proxy.ServeHTTP(answer, r) // it is done
		if connection, _, err := http.NewResponseController(w).Hijack(); err == nil {
			if how == "cut" {
				_, _ = fmt.Fprintf(connection, "HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%s", answer.Code, answer.Body.Len()+1, answer.Body.String()[:answer.Body.Len()/2])
			}
			_ = connection.Close()
		}
	case "slow":
		select {
		case <-r.Context().Done():
		case <-time.After(2 * time.Second): // a slow one, within the limit
		}
		f.proxy.ServeHTTP(w, r)
	case "1 GB":
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.CopyN(w, endless{}, 1<<30)
	case "504":
		http.Error(w, "maintenance of the proxy", http.StatusGatewayTimeout)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// Behind a proxy that breaks every third answer machines are made, switched and destroyed all the
// same, each once.
func TestBehindAFaultyProxy(t *testing.T) {
	t.Parallel()
	l := newLab(t, 4)
	to, err := url.Parse(l.URL)
	if err != nil {
		t.Fatal(err)
	}
	f := &faulty{proxy: httputil.NewSingleHostReverseProxy(to), did: map[string]int{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	d, err := open(pool.Config{Name: "metal", Kind: "ironic", URL: server.URL, Timeout: 10 * time.Second, Images: l.driver.config.Images}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	var all sync.WaitGroup
	specs := make([]pool.Spec, len(l.names))
	for n, name := range l.names {
		specs[n] = l.spec("m", name)
		all.Go(func() {
			found, err := d.Create(l.ctx, specs[n], &heard{t: t})
			if err != nil || found.Node != name {
				t.Errorf("Create = %+v, %v, want %s", found, err, name)
			}
			for _, action := range []provisioner.PowerAction{provisioner.PowerStop, provisioner.PowerStart} {
				if _, err := d.Power(l.ctx, pool.Ref{ID: specs[n].ID, Name: "m"}, action, &heard{t: t}); err != nil {
					t.Errorf("%s: %v", action, err)
				}
			}
			if got := l.node(name); got.ProvisionState != "active" || got.InstanceUUID != specs[n].ID || got.PowerState != "power on" {
				t.Errorf("the server is %+v", got)
			}
			if err := d.Destroy(l.ctx, pool.Ref{ID: specs[n].ID, Name: "m"}, &heard{t: t}); err != nil {
				t.Errorf("Destroy: %v", err)
			}
			if got := l.node(name); got.ProvisionState != "available" || got.InstanceUUID != "" || len(got.Extra) > 0 {
				t.Errorf("afterwards the server is %+v", got)
			}
		})
	}
	all.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	t.Logf("of %d answers went wrong: %v", f.requests.Load(), f.did)
	if len(f.did) < 3 {
		t.Error("hardly anything went wrong")
	}
}

// A redirect is not followed, and what is there gets no credentials.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var reached atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	t.Cleanup(elsewhere.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(server.Close)
	d, err := open(pool.Config{Name: "metal", Kind: "ironic", URL: server.URL, Token: "tendril:secret"}, 100)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.List(t.Context()); !is(err, classRedirect) || reached.Load() || strings.Contains(err.Error(), "secret") {
		t.Errorf("List = %v, and the other server was asked: %t", err, reached.Load())
	}
}
