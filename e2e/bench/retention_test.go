package bench

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/e2e/site"
)

// BenchmarkRetention is trellis gc on a table of old logs, while people read pages
// of a thousand rows of them from trellis serve: what it takes, how much memory
// it and its session have, what is left on the disk, and how long people wait.
func BenchmarkRetention(b *testing.B) {
	for b.Loop() {
		w := newOldLogs(b)
		gateway := w.Serve()
		v := newPageViewer(b, w, gateway)
		before := w.digest(b)
		b.ReportMetric(w.size(b, "provision_logs"), "before-MB")
		v.look(b, 500).report(b, "before-", 50, 99, 100)

		var said struct {
			Archived struct{ Logs, Rows, Bytes int64 }
			Moved    int64   `json:"moved_rows"`
			Seconds  float64 `json:"seconds"`
		}
		for _, stage := range []struct{ name, flags string }{{"archive", "--older-than=7 days"}, {"compact", "--compact"}} {
			var during series
			stop := make(chan struct{})
			var reading sync.WaitGroup
			reading.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						during = append(during, v.look(b, 1)...)
					}
				}
			})
			own, session := w.gc(b, &said, stage.flags)
			close(stop)
			reading.Wait()
			if stage.name == "archive" {
				b.ReportMetric(float64(said.Archived.Rows)/said.Seconds, "archived-/s")
				b.ReportMetric(float64(said.Archived.Rows), "rows")
			}
			b.ReportMetric(said.Seconds, stage.name+"-s")
			b.ReportMetric(own/1e6, stage.name+"-gc-MB")
			b.ReportMetric(session/1e6, stage.name+"-session-MB")
			b.ReportMetric(w.size(b, "provision_logs"), stage.name+"-rows-MB")
			b.ReportMetric(w.size(b, "provision_logs", "provision_log_archives"), stage.name+"-all-MB")
			during.report(b, stage.name+"-", 50, 99, 100)
		}
		v.look(b, 500).report(b, "after-", 50, 99, 100)
		b.ReportMetric(float64(site.PeakMemory(gateway.Cmd.Process.Pid))/1e6, "trellis-MB")
		if got := w.digest(b); got != before {
			b.Fatal("what people read of the logs has changed")
		}
	}
	only(b)
}

// gc runs trellis gc, and returns the most memory that it and its session in the
// database had, without what is shared.
func (w *oldLogs) gc(b *testing.B, said any, flags string) (own, session float64) {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), site.Program("trellis"), "gc", "-o", "json", "--database-url", w.URL, flags)
	var out, complaints strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	conn, err := pgx.Connect(b.Context(), w.URL)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(b.Context()) //nolint:errcheck // it only asked
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for pid := 0; ; {
		select {
		case err := <-ended:
			if err == nil {
				err = json.Unmarshal([]byte(out.String()), said)
			}
			if err != nil {
				b.Fatalf("trellis gc %s: %v\n%s", flags, err, complaints.String())
			}
			return own, session
		case <-tick.C:
			if pid == 0 {
				_ = conn.QueryRow(b.Context(), "SELECT pid FROM pg_stat_activity WHERE application_name = 'trellis gc'").Scan(&pid) // none yet
			}
			own, session = max(own, private(cmd.Process.Pid)), max(session, private(pid))
		}
	}
}

// private is what memory a process has for itself now, in bytes.
func private(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || pid == 0 {
		return 0
	}
	_, after, _ := strings.Cut(string(text), "RssAnon:")
	kib, _ := strconv.ParseFloat(strings.Fields(after + " 0")[0], 64)
	return kib * 1024
}

// pageViewer reads pages over one connection.
type pageViewer struct {
	*oldLogs
	client *http.Client
	url    string
	token  string
}

func newPageViewer(b *testing.B, w *oldLogs, g *site.Gateway) *pageViewer {
	b.Helper()
	authority, err := os.ReadFile(w.Git.CAFile)
	if err != nil {
		b.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}
	b.Cleanup(transport.CloseIdleConnections)
	return &pageViewer{w, &http.Client{Transport: transport}, g.URL, (&printers{Site: w.Site}).people(b, 1)[0]}
}

// look reads so many pages, of any logs at any place, and returns how long each took.
func (v *pageViewer) look(b *testing.B, pages int) (took series) {
	for range pages {
		n, rows := rand.IntN(len(v.ids)), rowsPerLog
		if rand.IntN(10) == 0 { // the long one more often than its share
			n, rows = 0, 40*rowsPerLog
		}
		after := rand.IntN(rows - 1000)
		request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, fmt.Sprintf("%s/api/v1/provisions/%s/logs?after=%d&limit=1000", v.url, v.ids[n], after), nil)
		if err != nil {
			b.Error(err)
			return took
		}
		request.Header.Set("Authorization", "Bearer "+v.token)
		began := time.Now()
		answer, err := v.client.Do(request)
		if err != nil {
			b.Error(err)
			return took
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		took.add(time.Since(began))
		if first := fmt.Sprintf(`{"items":[{"seq":%d,`, after+1); err != nil || !strings.HasPrefix(string(text), first) {
			b.Errorf("a page after %d = %s %.100s, %v, want one that begins with %s", after, answer.Status, text, err, first)
			return took
		}
	}
	return took
}
