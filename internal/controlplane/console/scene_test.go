package console_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/live"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/site"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// scene is the whole site on a database of its own, with an agent whose runs the
// test plays, and a network between it and browsers that can be cut.
type scene struct {
	*queuetest.World
	site  *site.Site
	wire  *browsertest.Wire
	queue queue.Queue
	sent  recorder // what browsers have sent
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{World: queuetest.NewWorld(t)}
	var err error
	if s.site, err = site.Start(t.Context(), site.Options{DatabaseURL: s.URL, Version: "v0.0-test", Streams: live.Limits{}, Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.sent.remember(r)
		s.site.ServeHTTP(w, r)
	}))
	s.wire = browsertest.NewWire(t, server.Listener.Addr().String())
	t.Cleanup(func() {
		s.wire.Close()
		s.site.Close()
		server.CloseClientConnections()
		server.Close()
	})
	s.queue, err = pgqueue.New(t.Context(), pgqueue.Options{URL: s.URL, ListenURL: "off", Token: s.Token, Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.queue.Close)
	if _, err := s.queue.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// enter signs a new person of that role in, in a tab of their own.
func (s *scene) enter(t *testing.T, role string, options ...browsertest.Option) *browsertest.Tab {
	t.Helper()
	id := uuid.New()
	s.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, $3)", s.Org, id, role)
	link, err := signin.NewLink(t.Context(), s.site.Database(), s.wire.URL(), id)
	if err != nil {
		t.Fatal(err)
	}
	tab := browsertest.Open(t, link, options...)
	tab.Click("Sign in")
	tab.Wait(`document.querySelector("main h1") && location.pathname === "/"`)
	return tab
}

// run is a provision that the test's agent carries out.
type run struct {
	scene  *scene
	id     uuid.UUID
	number string
	claim  uuid.UUID
	chunk  int64
}

// begin queues a provision on that workspace and claims it.
func (s *scene) begin(t *testing.T, workspace string) *run {
	t.Helper()
	return s.take(t, s.Deploy(t, workspace))
}

// take claims that provision.
func (s *scene) take(t *testing.T, id uuid.UUID) *run {
	t.Helper()
	r := &run{scene: s, id: id, number: s.Text(t, "SELECT number::text FROM public.provisions WHERE id = $1", id), claim: uuid.New(), chunk: 1}
	a, err := s.queue.Claim(t.Context(), r.claim)
	if err != nil || a == nil || a.ProvisionID != id {
		t.Fatalf("Claim() = %v, %v, want provision %s", a, err, id)
	}
	return r
}

func (r *run) path() string { return "/provisions/" + r.number }

// prints stores pieces of a stream as the agent sends them.
func (r *run) prints(t *testing.T, stream provision.Stream, texts ...string) {
	t.Helper()
	var chunks []provision.LogChunk
	for _, text := range texts {
		for len(text) > 0 {
			n := min(len(text), 10<<10)
			for n < len(text) && text[n]&0xC0 == 0x80 {
				n--
			}
			chunks = append(chunks, provision.LogChunk{Stream: stream, Text: text[:n], EmittedAt: time.Now()})
			text = text[n:]
		}
	}
	for len(chunks) > 0 {
		n := min(len(chunks), 30)
		next, err := r.scene.queue.AppendLog(t.Context(), r.claim, r.chunk, chunks[:n])
		if err != nil || next <= r.chunk {
			t.Fatalf("AppendLog(%d) = %d, %v, want some stored", r.chunk, next, err)
		}
		r.chunk, chunks = next, chunks[next-r.chunk:]
	}
}

func (r *run) reports(t *testing.T, status provision.Status, detail provision.Detail) {
	t.Helper()
	if err := r.scene.queue.Report(t.Context(), r.claim, provision.Report{Status: status, Detail: detail}); err != nil {
		t.Fatalf("Report(%s) = %v, want nil", status, err)
	}
}

func (r *run) reaches(t *testing.T, stages ...provision.Stage) {
	t.Helper()
	for _, stage := range stages {
		d := provision.Detail{Stage: stage}
		if stage == provision.StageCheckout {
			d.Commit = strings.Repeat("a", 40)
		}
		r.reports(t, provision.Processing, d)
	}
}

// waitLines waits for that many.
func waitLines(tab *browsertest.Tab, n int) {
	tab.Wait(`document.getElementById("log")?.viewer?.lines.length >= ` + strconv.Itoa(n))
}

// renewed has parts of a page renewed and waits for that. It asks again: what is asked while a part
// is on its way may be left out.
func renewed(tab *browsertest.Tab, ids ...string) {
	for _, id := range ids {
		browsertest.Eval[bool](tab, `window.renewed = {}, document.addEventListener("htmx:afterSettle", (e) => { window.renewed[e.detail.requestConfig?.elt.id] = true }), true`)
		tab.Wait(fmt.Sprintf(`window.renewed[%[1]q] || (htmx.trigger("#%[1]s", "renew"), false)`, id))
	}
}
