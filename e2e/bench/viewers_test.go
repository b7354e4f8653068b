package bench

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// BenchmarkViewers is a thousand people who watch one log of a run that prints 10
// lines a second, each over a connection of their own to trellis serve, from the
// moment at which the engine prints a line until they have it. All of them are
// in this process, which the same processors serve.
func BenchmarkViewers(b *testing.B) {
	for _, protocol := range []string{"http2", "http1"} {
		b.Run(protocol, func(b *testing.B) {
			watched(b, 1000, protocol, printing{During: "apply", Lines: 200, Gap: 100 * time.Millisecond})
		})
	}
}

func watched(b *testing.B, people int, protocol string, p printing) {
	w := newPrinters(b, 1, p)
	tokens := w.people(b, people)
	gateway := w.Serve() // the agent has been told of the database already
	w.agent.Start()
	trellis := gateway.Cmd.Process.Pid
	var late series
	var whole, serving, storing time.Duration
	listeners := 0
	for b.Loop() {
		id := w.deploy(b, 1)[0]
		v := w.watch(b, gateway, id, tokens, protocol, p.Lines)
		began, ours, database := time.Now(), cpuOf(b, trellis), usageBelow(b, w.postgres)
		w.journal.begin(b)
		late = append(late, v.wait(b)...)
		whole, serving, storing = whole+time.Since(began), serving+cpuOf(b, trellis)-ours, storing+usageBelow(b, w.postgres)-database
		if err := w.Conn.QueryRow(b.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE '%LISTEN tendril%' AND pid <> pg_backend_pid() AND application_name LIKE 'trellis%'").Scan(&listeners); err != nil {
			b.Fatal(err)
		}
		w.settled(b, id)
		w.journal.used(b, 1)
	}
	late.report(b, "", 50, 90, 99, 100)
	b.ReportMetric(float64(site.PeakMemory(trellis))/(1<<20), "trellis-MB")
	b.ReportMetric(float64(listeners), "listeners")
	b.ReportMetric(100*serving.Seconds()/whole.Seconds(), "trellis-cpu-%")
	b.ReportMetric(100*storing.Seconds()/whole.Seconds(), "postgres-cpu-%")
	only(b)
}

// people makes so many who may look, and returns a token of each.
func (w *printers) people(b *testing.B, n int) []string {
	b.Helper()
	database, err := store.Connect(b.Context(), w.URL, 1)
	if err != nil {
		b.Fatal(err)
	}
	defer database.Close()
	tokens := make([]string, n)
	for i := range tokens {
		id := uuid.New()
		w.Exec(b, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'viewer')", w.Org, id)
		if tokens[i], err = signin.NewToken(b.Context(), database, id, "bench"); err != nil {
			b.Fatal(err)
		}
	}
	return tokens
}

// watchers are people who watch one log.
type watchers struct {
	all  sync.WaitGroup
	mu   sync.Mutex
	late series
	err  error
}

// watch returns when all of them see how the provision stands.
func (w *printers) watch(b *testing.B, g *site.Gateway, id uuid.UUID, tokens []string, protocol string, lines int) *watchers {
	b.Helper()
	authority, err := os.ReadFile(w.Git.CAFile)
	if err != nil {
		b.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	ctx, cancel := patience.Context(b.Context(), 2*time.Minute)
	b.Cleanup(cancel)
	v := &watchers{}
	ready := make(chan struct{}, len(tokens))
	for _, token := range tokens {
		transport := &http.Transport{ForceAttemptHTTP2: protocol == "http2", TLSClientConfig: &tls.Config{RootCAs: trusted}}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL+"/api/v1/provisions/"+id.String()+"/logs/stream", nil)
		if err != nil {
			b.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		v.all.Go(func() {
			defer transport.CloseIdleConnections()
			late, err := watchOne(transport, request, lines, func() { ready <- struct{}{} })
			v.mu.Lock()
			defer v.mu.Unlock()
			v.late = append(v.late, late...)
			if err != nil {
				v.err = err
			}
		})
	}
	for range tokens {
		select {
		case <-ready:
		case <-ctx.Done():
			b.Fatalf("not all viewers were let in: %v", v.err)
		}
	}
	return v
}

// watchOne reads until it has seen all lines, and returns how late each was.
func watchOne(transport *http.Transport, request *http.Request, lines int, ready func()) (late series, err error) {
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("a viewer is answered %s", response.Status)
	}
	reader := bufio.NewReaderSize(response.Body, 16<<10)
	first := true
	for len(late) < lines {
		line, err := reader.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull { //nolint:errorlint // it is not wrapped
			return late, fmt.Errorf("after %d of %d lines: %w", len(late), lines, err)
		}
		if first && bytes.HasPrefix(line, []byte("event: status")) {
			first = false
			ready()
		}
		now := time.Now()
		for {
			_, rest, found := bytes.Cut(line, []byte(printedAt))
			if !found {
				break
			}
			stamp, _, _ := bytes.Cut(rest, []byte(" "))
			nanos, err := strconv.ParseInt(string(stamp), 10, 64)
			if err != nil {
				return late, err
			}
			late.add(now.Sub(time.Unix(0, nanos)))
			line = rest
		}
	}
	return late, nil
}

// wait waits until all have seen all lines, and returns how late each was for each.
func (v *watchers) wait(b *testing.B) series {
	b.Helper()
	v.all.Wait()
	if v.err != nil {
		b.Fatal(v.err)
	}
	return v.late
}
