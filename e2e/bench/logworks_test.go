package bench

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// printers is a site with an agent whose engine is the printing one, and a
// table like that of the logs for what can be stored without Tendril.
type printers struct {
	*site.Site
	agent    *site.Agent
	journal  journal
	repo     string
	postgres int // the server's process
	deployed int
}

// newPrinters configures an agent, which is not started.
func newPrinters(b *testing.B, slots int, p printing) *printers {
	b.Helper()
	return printersAt(b, site.New(b), slots, p)
}

// printersAt is newPrinters at a site that is there.
func printersAt(b *testing.B, s *site.Site, slots int, p printing) *printers {
	b.Helper()
	w := &printers{Site: s, journal: journal(b.TempDir())}
	w.repo = s.Template("printer", map[string]string{"main.tf": ""})
	w.agent = s.NewAgent("one", slots, s.SharedState())
	w.agent.Set("TENDRIL_RUN_LOG_LIMIT", "4GiB")
	w.agent.Set("TENDRIL_ENGINE_DIR", engineDir(b))
	w.agent.Set("TEST_JOURNAL", string(w.journal))
	w.agent.Set(printEnv, p.String())
	s.Exec(b, "UPDATE tendril.settings SET log_limit = 4::bigint << 30")
	s.Exec(b, "CREATE TABLE public.bare (LIKE public.provision_logs INCLUDING ALL)")
	w.postgres = serverPID(b, s)
	return w
}

// deploy queues runs and returns when the engine of each is ready to print.
func (w *printers) deploy(b *testing.B, runs int) []uuid.UUID {
	b.Helper()
	ids := make([]uuid.UUID, runs)
	for i := range ids {
		w.deployed++
		ids[i] = w.DeployTemplate(w.repo, "w"+strconv.Itoa(w.deployed), nil)
	}
	limit := patience.Begin(site.Patience)
	for len(w.journal.list("ready")) < runs {
		for _, id := range ids {
			if got := w.Status(b, id); strings.Contains(got, "SUCCESS") || strings.Contains(got, "FAILED") {
				b.Fatalf("provision = %s (%s) before it has printed:\n%s", got, w.Message(id), w.Log(b, id))
			}
		}
		if limit.Over() {
			b.Fatal("timed out waiting for the engines")
		}
		limit.Pause()
	}
	return ids
}

// settled waits for the end of runs, which is to be a success.
func (w *printers) settled(b *testing.B, ids ...uuid.UUID) {
	b.Helper()
	for _, id := range ids {
		if got := w.AwaitEnd(id); got != "SUCCESS" {
			b.Fatalf("provision = %s (%s), want SUCCESS", got, w.Message(id))
		}
	}
}

// storedBytes is what has been stored of what the engine printed.
func (w *printers) storedBytes(b *testing.B, id uuid.UUID) (n int) {
	b.Helper()
	if err := w.Conn.QueryRow(b.Context(), "SELECT coalesce(sum(octet_length(log_chunk)), 0) FROM public.provision_logs WHERE provision_id = $1 AND stream_type = 'STDOUT'", id).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// connect opens connections as a superuser has them, one for each bare writer.
func (w *printers) connect(b *testing.B, n int) []*pgx.Conn {
	b.Helper()
	conns := make([]*pgx.Conn, n)
	for i := range conns {
		conn, err := pgx.Connect(b.Context(), w.URL)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close(b.Context()) })
		conns[i] = conn
	}
	return conns
}

// serverPID is PostgreSQL's process, which has started all the others.
func serverPID(b *testing.B, s *site.Site) int {
	b.Helper()
	text := s.Text(b, "SELECT pg_read_file('postmaster.pid')")
	first, _, _ := strings.Cut(text, "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		b.Fatal(err)
	}
	return pid
}

const (
	// bareChunks of chunkSize are what a bare writer stores by one statement.
	bareChunks = 20
	insertBare = `INSERT INTO public.bare (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
		SELECT $1, $2 + t.n, $3, 'STDOUT', t.chunk, now() FROM unnest($4::text[]) WITH ORDINALITY AS t (chunk, n)`
)

// chunks cuts the lines that engines print into rows of a log.
func chunks() []string {
	text := strings.Join(lines(), "")
	var out []string
	for len(text) > provision.ChunkTarget {
		out = append(out, text[:provision.ChunkTarget])
		text = text[provision.ChunkTarget:]
	}
	return out
}

// storeBare stores at least size bytes as one bare writer does.
func (w *printers) storeBare(b *testing.B, conn *pgx.Conn, size int) error {
	some := chunks()
	some = slices.Concat(some, some[:bareChunks])
	id := uuid.New()
	for i := 0; i*bareChunks*provision.ChunkTarget < size; i++ {
		at := i * bareChunks % (len(some) - bareChunks)
		if _, err := conn.Exec(b.Context(), insertBare, id, i*bareChunks, w.Org, some[at:at+bareChunks]); err != nil {
			return err
		}
	}
	return nil
}

// engineDir is a directory with a copy of this program as the engine.
func engineDir(b *testing.B) string {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	from, err := os.Open(self)
	if err != nil {
		b.Fatal(err)
	}
	defer from.Close() //nolint:errcheck // only read
	dir := b.TempDir()
	to, err := os.OpenFile(filepath.Join(dir, "terraform"), os.O_WRONLY|os.O_CREATE, 0o700)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		b.Fatal(err)
	}
	if err := to.Close(); err != nil {
		b.Fatal(err)
	}
	return dir
}
