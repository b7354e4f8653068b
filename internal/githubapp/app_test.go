package githubapp_test

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/githubapp"
	"github.com/tendril-run/tendril/internal/testkit/apptest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is moved by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newApp(t *testing.T, change func(*githubapp.Options)) (*githubapp.App, *apptest.API, *clock) {
	t.Helper()
	c := &clock{now: time.Now().Truncate(time.Second)}
	api := apptest.New(t, c.Now)
	o := githubapp.Options{
		ID: apptest.AppID, Installation: apptest.Installation, API: api.URL + "/", Transport: api.Transport(), Now: c.Now,
		Key: func() (string, error) { return api.Key, nil },
	}
	if change != nil {
		change(&o)
	}
	return githubapp.New(o), api, c
}

func wantToken(t *testing.T, app *githubapp.App, want string) {
	t.Helper()
	if got, err := app.Token(t.Context()); got != want || err != nil {
		t.Errorf("Token() = %q, %v, want %q", got, err, want)
	}
}

// A token serves until half an hour before its end; while GitHub gives out no
// other, a while longer, and never to its end.
func TestTokenIsKeptAndRenewed(t *testing.T) {
	t.Parallel()
	app, api, clock := newApp(t, nil)
	wantToken(t, app, "ghs_000000000000000000000000000000000001")
	clock.forward(29 * time.Minute)
	wantToken(t, app, "ghs_000000000000000000000000000000000001")
	clock.forward(2 * time.Minute)
	wantToken(t, app, "ghs_000000000000000000000000000000000002")
	if got := api.Asked(); got != 2 {
		t.Errorf("requests = %d, want 2", got)
	}

	api.Answer(http.StatusBadGateway, "<html>")
	clock.forward(54 * time.Minute)
	wantToken(t, app, "ghs_000000000000000000000000000000000002")
	clock.forward(2 * time.Minute)
	if got, err := app.Token(t.Context()); err == nil || got != "" {
		t.Errorf("Token() = %q, %v, want an error four minutes before the end", got, err)
	}
	api.Answer(0, "")
	wantToken(t, app, "ghs_000000000000000000000000000000000003")
}

// Many runs that begin at once ask once.
func TestTokenIsAskedForOnce(t *testing.T) {
	t.Parallel()
	app, api, _ := newApp(t, nil)
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() { wantToken(t, app, "ghs_000000000000000000000000000000000001") })
	}
	asking.Wait()
	if got := api.Asked(); got != 1 {
		t.Errorf("requests = %d, want 1", got)
	}
}

// hanging is a GitHub that is away: requests wait until it is closed.
type hanging struct {
	asked atomic.Int32
	over  chan struct{}
}

func (h *hanging) RoundTrip(*http.Request) (*http.Response, error) {
	h.asked.Add(1)
	<-h.over
	return nil, errors.New("away")
}

// Runs that begin together wait for a GitHub that hangs at the same time, not
// one after the other.
func TestFailureIsShared(t *testing.T) {
	t.Parallel()
	away, calls := &hanging{over: make(chan struct{})}, make(chan struct{}, 99)
	app, _, _ := newApp(t, func(o *githubapp.Options) {
		o.Transport = away
		o.Now = func() time.Time { calls <- struct{}{}; return time.Now() }
	})
	var asking sync.WaitGroup
	const runs = 5
	for range runs {
		asking.Go(func() {
			if _, err := app.Token(t.Context()); err == nil {
				t.Error("Token() = nil, want an error")
			}
		})
	}
	limit := patience.After(time.Minute)
	for range runs + 1 { // each has looked at its clock, and the first has the lock
		select {
		case <-calls:
		case <-limit:
			t.Error("timed out waiting for all to have begun")
		}
	}
	close(away.over)
	asking.Wait()
	if got := away.asked.Load(); got != 1 {
		t.Errorf("requests = %d, want 1 for all who waited", got)
	}
}

// Each refusal says what to do, and none shows the key or what was signed.
func TestTokenRefused(t *testing.T) {
	t.Parallel()
	other := apptest.New(t, nil)
	for name, c := range map[string]struct {
		change func(*githubapp.Options)
		status int
		body   string
		want   string
	}{
		"another App's key":      {change: func(o *githubapp.Options) { o.Key = func() (string, error) { return other.Key, nil } }, want: "not deleted or expired"},
		"no key":                 {change: func(o *githubapp.Options) { o.Key = func() (string, error) { return "hunter2", nil } }, want: "holds no RSA key in PEM"},
		"another App":            {change: func(o *githubapp.Options) { o.ID = "1" }, want: `"Integration not found"); check app_id`},
		"another installation":   {change: func(o *githubapp.Options) { o.Installation = "1" }, want: "that the App is still installed"},
		"clock behind":           {change: func(o *githubapp.Options) { o.Now = func() time.Time { return time.Now().Add(-time.Hour) } }, want: "this machine's clock is right"},
		"clock ahead":            {change: func(o *githubapp.Options) { o.Now = func() time.Time { return time.Now().Add(time.Hour) } }, want: "this machine's clock is right"},
		"suspended":              {status: 403, body: `{"message":"This installation has been suspended"}`, want: "not suspended"},
		"permission not granted": {status: 422, body: `{"message":"The permissions requested are not granted to this installation."}`, want: "Contents: read"},
		"redirect":               {status: 307, body: other.URL, want: "redirect"},
		"not GitHub":             {status: 201, body: "<html>", want: "check app_api_url"},
		"down":                   {change: func(o *githubapp.Options) { other := apptest.New(t, nil); other.Close(); o.API = other.URL }, want: "cannot be reached at https://127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app, api, _ := newApp(t, c.change)
			api.Answer(c.status, c.body)
			_, err := app.Token(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("Token() = %v, want %q in it", err, c.want)
			}
			for _, secret := range []string{"hunter2", "Bearer", "eyJ", "PRIVATE KEY", "\n"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("Token() = %v, with %q in it", err, secret)
				}
			}
		})
	}
	if got := other.Asked(); got != 0 {
		t.Errorf("requests at the redirect's target = %d, want none", got)
	}
}
