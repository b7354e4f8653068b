package wiretest_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/wiretest"
)

// webLine is a server with one function, and a proxy before it.
type webLine struct {
	*wiretest.Proxy
	t     *testing.T
	url   string
	http  *http.Client
	noted atomic.Int64
}

func newWebLine(t *testing.T) *webLine {
	l := &webLine{t: t}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Text string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Text == "" {
			t.Errorf("the server was sent %+v, %v, want a text", body, err)
		}
		_ = json.NewEncoder(w).Encode(l.noted.Add(1))
	}))
	t.Cleanup(server.Close)
	l.Proxy = wiretest.NewHTTPS(t, server.Listener.Addr().String())
	l.url, l.http = l.URL(server.URL+"/rest/v1/rpc/note"), server.Client()
	t.Cleanup(l.http.CloseIdleConnections)
	return l
}

func (l *webLine) note(text string) error {
	r, err := l.http.Post(l.url, "application/json", strings.NewReader(`{"text":"`+text+`"}`))
	if err != nil {
		return err
	}
	return r.Body.Close()
}

func TestHTTPSCallsAndTheirFates(t *testing.T) {
	for fate, want := range map[wiretest.Fate]struct {
		fails bool
		noted int64 // right after
		later int64 // when what was delayed has been delivered
	}{
		wiretest.Deliver:     {false, 1, 1},
		wiretest.LoseReply:   {true, 1, 1},
		wiretest.LoseRequest: {true, 0, 0},
		wiretest.Delay:       {true, 0, 1},
	} {
		l := newWebLine(t)
		l.Judge(func(c wiretest.Call) wiretest.Fate {
			if c.Function != "note" || c.Named["text"] != "hello" {
				t.Errorf("Judge(%+v), want note of the text hello", c)
			}
			return fate
		})
		if err := l.note("hello"); (err != nil) != want.fails {
			t.Errorf("fate %d: the call = %v, want an error: %t", fate, err, want.fails)
		}
		// The reply is swallowed, and the connection cut, when the server is done.
		if got := l.noted.Load(); got != want.noted {
			t.Errorf("fate %d: %d notes, want %d", fate, got, want.noted)
		}
		l.DeliverDelayed()
		if got := l.noted.Load(); got != want.later {
			t.Errorf("fate %d: %d notes in the end, want %d", fate, got, want.later)
		}
		l.Judge(nil)
		if err := l.note("again"); err != nil {
			t.Errorf("fate %d: a call on a new connection = %v, want nil", fate, err)
		}
	}
}

func TestHTTPSRefusedAndLost(t *testing.T) {
	l := newWebLine(t)
	l.Refuse()
	if err := l.note("refused"); err == nil {
		t.Error("a call while the proxy refuses = nil, want an error")
	}
	l.BlackHole()
	l.http.Timeout = 200 * time.Millisecond
	if err := l.note("lost"); err == nil {
		t.Error("a call into a black hole = nil, want an error")
	}
	l.Pass()
	l.http.Timeout = 0
	if err := l.note("through"); err != nil {
		t.Errorf("a call after Pass() = %v, want nil", err)
	}
	if got := l.noted.Load(); got != 1 {
		t.Errorf("%d notes, want 1", got)
	}
}
