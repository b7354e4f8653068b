package console

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// printing is a template that says each half second what time it is, until a file
// is there.
const printing = `
resource "terraform_data" "clock" {
  triggers_replace = timestamp()
  provisioner "local-exec" {
    quiet   = true
    command = "n=0; while [ ! -e %s ] && [ $n -lt 1200 ]; do n=$((n+1)); echo \"line $n printed $(date +%%s%%3N)\"; sleep 0.5; done; echo over"
  }
}
`

// recording has a page remember how long after it was printed a line was there to
// be seen, in milliseconds by its number; in timely, of what was printed since.
const recording = `(() => {
	window.lateness = {}; window.timely = {};
	const since = Date.now();
	const look = (e) => {
		const m = /line (\d+) printed (\d+)/.exec(e.textContent);
		if (!m) return;
		window.lateness[m[1]] ??= Date.now() - Number(m[2]);
		if (Number(m[2]) >= since) window.timely[m[1]] ??= window.lateness[m[1]];
	};
	new MutationObserver((all) => { for (const {addedNodes} of all) addedNodes.forEach(look); })
		.observe(document.querySelector("#log .log-space"), {childList: true, subtree: true});
	return true;
})()`

const logViewer = `document.getElementById("log").viewer`

func parsed(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// liveLog watches a real Terraform: what it prints is in the page within a second,
// and a network that is away for ten costs no line and repeats none.
func liveLog(t *testing.T, h *house) {
	gate := filepath.Join(pgtest.Dir(t), "enough") // that whoever runs Terraform can look for
	run := h.deploy(t, h.template(t, "clock", map[string]string{"main.tf": fmt.Sprintf(printing, gate)}), "demo/clock")
	defer func() { _ = os.WriteFile(gate, nil, 0o600) }() // whatever happens
	wire := browsertest.NewWire(t, strings.TrimPrefix(h.Runtime().URL, "http://"))
	// By the name that cookies count at, on the wire's port.
	at, real := parsed(t, h.Runtime().BrowserURL), parsed(t, wire.URL())
	at.Host = at.Hostname() + ":" + real.Port()
	tab := h.signIn(t, at.String())
	tab.Allow("net::ERR_|htmx:") // while it is away
	tab.Visit(at.String() + "/provisions/" + strconv.FormatInt(run.Number, 10))
	tab.Wait(`document.getElementById("log")?.viewer`)
	tab.Wait(`["", "live"].includes(` + logViewer + `.state)`) // the stream is open
	browsertest.Eval[bool](tab, recording)
	seen := func(which string) map[string]float64 {
		return browsertest.Eval[map[string]float64](tab, "window."+which)
	}
	await(t, "ten lines in a row are in the page within a second of having been printed while it was open", func() bool {
		all := seen("timely")
		last := lastTen(all)
		if last == nil {
			return false
		}
		t.Logf("of %d lines the last ten were in the page after a median of %.0f ms, at most %.0f ms", len(all), last[5], last[9])
		return last[5] <= 1000 && last[9] <= 5000 // a second, where nothing else runs
	})

	// Ten seconds by the clock of what is printed, while it goes on.
	cut := time.Now()
	wire.Sever(true)
	tab.Wait(logViewer + `.state === "reconnecting"`)
	var stored [][]string
	await(t, "ten lines, and those of ten seconds, are stored that the page has not", func() bool {
		stored = printed.FindAllStringSubmatch(h.log(t, run.ID), -1)
		return len(stored)-len(seen("lateness")) >= 10 && millis(stored[len(stored)-1][2]) >= cut.Add(10*time.Second).UnixMilli()
	})
	mended := time.Now()
	wire.Sever(false)
	last := stored[len(stored)-1][1]
	tab.WaitText("line " + last + " printed")
	t.Logf("%v after the network was back, all is there that was printed meanwhile", time.Since(mended).Round(10*time.Millisecond))

	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tab.Wait(`document.querySelector("#run[data-over]") && ` + logViewer + `.state === ""`)
	if status := newest(t, h, "demo/clock"); status != "apply "+string(provision.Success) {
		t.Errorf("the run = %s, want SUCCESS", status)
	}
	shown := browsertest.Eval[string](tab, `Array.from({length: `+logViewer+`.lines.length}, (_, n) => `+logViewer+`.lines.texts[n]).join("\n")`)
	if want := strings.TrimSuffix(h.log(t, run.ID), "\n"); shown != want {
		t.Errorf("the log in the page =\n%s\nwant\n%s", shown, want)
	}
	for i, m := range printed.FindAllStringSubmatch(shown, -1) {
		if m[1] != strconv.Itoa(i+1) {
			t.Fatalf("line %s is the page's number %d: one is missing or there twice:\n%s", m[1], i+1, shown)
		}
	}
}

// lastTen are the values of the ten highest numbers, sorted; nil where there are
// fewer.
func lastTen(byNumber map[string]float64) (last []float64) {
	var numbers []int64
	for number := range byNumber {
		numbers = append(numbers, millis(number))
	}
	slices.Sort(numbers)
	if len(numbers) < 10 {
		return nil
	}
	for _, n := range numbers[len(numbers)-10:] {
		last = append(last, byNumber[strconv.FormatInt(n, 10)])
	}
	slices.Sort(last)
	return last
}

var printed = regexp.MustCompile(`line (\d+) printed (\d+)`)

func millis(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64) // digits
	return n
}

// log is what the database has of a provision's.
func (h *house) log(t *testing.T, provision uuid.UUID) (text string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), h.Runtime().DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	err = conn.QueryRow(t.Context(), "SELECT coalesce(string_agg(log_chunk, '' ORDER BY seq), '') FROM public.provision_logs WHERE provision_id = $1", provision).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
