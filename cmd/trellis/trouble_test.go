package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/devstack"
)

// cutting is a proxy that loses the answer to the first POST, after it has come,
// and cuts each event stream after some bytes: the first within its first event,
// however soon the server is to end it.
type cutting struct{ posts, streams atomic.Int32 }

const firstCut, cutAfter = 40, 600

func (c *cutting) before(t *testing.T, server string) http.Handler {
	t.Helper()
	to, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{
		Transport: transport, ErrorLog: log.New(io.Discard, "", 0), // of what is cut on purpose
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodPost && c.posts.Add(1) == 1 {
				return errors.New("lost")
			}
			if strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
				after := int64(cutAfter)
				if c.streams.Load() == 0 {
					after = firstCut
				}
				r.Body = struct {
					io.Reader
					io.Closer
				}{io.MultiReader(io.LimitReader(r.Body, after), &cut{c}), r.Body}
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
}

// cut is where a stream breaks off.
type cut struct{ counted *cutting }

func (c *cut) Read([]byte) (int, error) {
	c.counted.streams.Add(1)
	return 0, io.ErrUnexpectedEOF
}

// A network that cuts streams and loses the answer to a deploy, and a server that
// is started again while a log is followed, cost no line and make nothing twice.
func testFollowThroughTrouble(t *testing.T, runtime devstack.Runtime) {
	t.Parallel()
	serve := begin(t, "serve", "--database-url", runtime.DatabaseURL, "--listen", "127.0.0.1:0")
	serve.await(t, "serving people and agents")
	server := regexp.MustCompile(`http://[0-9.:]+`).FindString(serve.said.String())
	cuts := &cutting{}
	proxy := httptest.NewServer(cuts.before(t, server))
	t.Cleanup(proxy.Close)
	env := []string{"TRELLIS_URL=" + proxy.URL, "TRELLIS_TOKEN=" + runtime.APIToken}
	deployed := trellisEnv(t, env, "deploy", "--template", "hello", "--workspace", "trouble", "--var", "name=x", "--var", "steps=20", "--var", "pause_seconds=0.3", "-o", "json")
	deployed.want(t, "deploy", exitOK)
	number := regexp.MustCompile(`"number": (\d+)`).FindStringSubmatch(deployed.out)[1]
	if list := trellisEnv(t, env, "status", "-o", "json"); strings.Count(list.out, `"workspace": "trouble"`) != 1 || cuts.posts.Load() != 2 {
		t.Errorf("a deploy whose answer was lost was asked for %d times and has made %s, want two times and one provision", cuts.posts.Load(), list.out)
	}
	follower := beginEnv(t, env, "logs", number, "--follow")
	follower.await(t, "step 2 of 20")
	serve.signal(os.Interrupt)
	serve.end(t)
	serve = begin(t, "serve", "--database-url", runtime.DatabaseURL, "--listen", strings.TrimPrefix(server, "http://"))
	serve.await(t, "serving people and agents")
	if code := follower.end(t); code != exitOK {
		t.Errorf("logs --follow through a restart = %d, want 0\n%s", code, follower.said)
	}
	if cuts.streams.Load() == 0 { // how many there are depends on how fast the machine is
		t.Error("no stream was cut: nothing was tried")
	}
	whole := trellisEnv(t, env, "logs", number)
	whole.want(t, "logs", exitOK, "step 20 of 20")
	if got := follower.said.String(); !strings.HasPrefix(got, whole.out) {
		t.Errorf("what was followed is\n%s\nwant the log, whole and once:\n%s", got, whole.out)
	}
	jsons := trellisEnv(t, env, "logs", number, "-o", "json")
	var text strings.Builder
	for line := range strings.Lines(jsons.out) {
		var piece struct{ Text string }
		if err := json.Unmarshal([]byte(line), &piece); err != nil {
			t.Fatalf("logs -o json has the line %q: %v", line, err)
		}
		text.WriteString(piece.Text)
	}
	if text.String() != whole.out {
		t.Errorf("logs -o json has the text %q, want %q", text.String(), whole.out)
	}
}
