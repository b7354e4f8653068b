package browsertest

import (
	"fmt"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(panicEnv) != "" {
		panicWithBrowser()
	}
	pgtest.Main(With(m))
}

// site serves pages under a policy as strict as the console's.
func site(t *testing.T, pages map[string]string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'")
		if strings.HasSuffix(r.URL.Path, ".js") {
			w.Header().Set("Content-Type", "text/javascript")
		} else if strings.HasSuffix(r.URL.Path, ".css") {
			w.Header().Set("Content-Type", "text/css")
		} else {
			page = `<!doctype html><html lang="en"><head><title>t</title><link rel="icon" href="data:,"></head><body>` + page + `</body></html>`
			w.Header().Set("Content-Type", "text/html")
		}
		_, _ = fmt.Fprint(w, page)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// What no person would see, a tab tells of; what is allowed it does not.
func TestProblems(t *testing.T) {
	t.Parallel()
	url := site(t, map[string]string{
		"/":      `<main><h1>x</h1><script>alert(1)</script><script src="/bad.js"></script></main>`,
		"/clean": `<main><h1>clean</h1></main>`,
		"/bad.js": `console.error("told", 7);
			console.log("not an error");
			setTimeout(() => { throw new Error("thrown"); });
			fetch("/missing").then(() => setTimeout(() => { document.title = "done"; }));
			Promise.reject(new Error("rejected"));`,
	})
	tab := Open(t, url)
	tab.Wait(`document.title === "done"`)
	told := tab.Problems()
	tab.Allow(".") // they are what is wanted here
	seen := strings.Join(told, "\n")
	for _, want := range []string{"told 7", "inline script", "Error: thrown", "Error: rejected", "/missing answers 404"} {
		if !strings.Contains(seen, want) {
			t.Errorf("the tab does not tell of %q:\n%s", want, seen)
		}
	}
	if strings.Contains(seen, "not an error") || len(told) != 5 {
		t.Errorf("the tab tells of what is no problem, too:\n%s", seen)
	}
	if left := tab.Problems(); len(left) > 0 {
		t.Errorf("Problems() = %q after all were allowed", left)
	}
	other := tab.Another()
	other.Visit(url + "/clean")
	if got := other.Problems(); len(got) > 0 {
		t.Errorf("Problems() of a clean page = %q, want none", got)
	}
}

// A page whose scripts got lost when the network changed is loaded again.
func TestPageWithoutItsScripts(t *testing.T) {
	t.Parallel()
	tab := Open(t, site(t, map[string]string{"/": `<main><h1>x</h1></main>`}))
	for _, lost := range []network.EventLoadingFailed{
		{Type: network.ResourceTypeScript, ErrorText: "net::ERR_NETWORK_CHANGED"},
		{Type: network.ResourceTypeStylesheet, ErrorText: "net::ERR_NETWORK_CHANGED"},
	} {
		Eval[bool](tab, `window.old = true`)
		tab.Wait(`window.old`)
		tab.seen.hear(&lost)
		tab.Wait(`!window.old && document.readyState === "complete"`)
	}
}

// A tab does what a person does: clicks on what it sees, types into a field of
// a label, chooses, and has cookies of its own.
func TestActing(t *testing.T) {
	t.Parallel()
	url := site(t, map[string]string{
		"/": `<main><h1>Form</h1><form><label for="n">Name</label><input id="n" value="old">
			<label>Size <select id="s"><option value="1">one</option><option value="2">two</option></select></label>
			<button id="hidden" type="button" hidden>Deploy</button><button id="go" type="button" disabled>Deploy</button></form><p id="said"></p>
			<script src="/form.js"></script></main>`,
		"/form.js": `setTimeout(() => { document.getElementById("go").disabled = false; }, 50);
			document.getElementById("hidden").addEventListener("click", () => { document.getElementById("said").textContent = "wrong"; });
			document.getElementById("go").addEventListener("click", (e) => {
				document.cookie = "a=1";
				document.getElementById("said").textContent = e.isTrusted + " " + document.getElementById("n").value + " " + document.getElementById("s").value;
			});`,
	})
	tab := Open(t, url)
	tab.Fill("Name", "new")
	tab.Fill("Size", "two")
	tab.Click("Deploy")
	tab.WaitText("true new 2")
	second := tab.Another()
	second.Visit(url)
	for who, is := range map[string]struct {
		tab  *Tab
		want string
	}{"beside": {second, "a=1"}, "of its own": {Open(t, url), ""}} {
		if got := Eval[string](is.tab, "document.cookie"); got != is.want {
			t.Errorf("cookies of a tab %s = %q, want %q", who, got, is.want)
		}
	}
}

// A tab that is cut off says so, to its page and to the test.
func TestOffline(t *testing.T) {
	t.Parallel()
	url := site(t, map[string]string{"/": `<main><h1>here</h1></main>`})
	tab := Open(t, url)
	const ask = `fetch("/").then((r) => "answered", () => "failed")`
	for _, is := range []struct {
		off  bool
		want string
	}{{false, "answered"}, {true, "failed"}, {false, "answered"}} {
		tab.Offline(is.off)
		if got := Eval[string](tab, ask); got != is.want {
			t.Errorf("a request of a tab, offline %v = %q, want %q", is.off, got, is.want)
		}
	}
	if got := tab.Problems(); len(got) != 1 || !strings.Contains(got[0], "ERR_INTERNET_DISCONNECTED") {
		t.Errorf("Problems() = %q, want the request that failed", got)
	}
	tab.Allow("ERR_INTERNET_DISCONNECTED")
}

// A page is judged as it is looked at.
func TestLooks(t *testing.T) {
	t.Setenv(artifactsEnv, t.TempDir())
	url := site(t, map[string]string{
		"/": `<link rel="stylesheet" href="/s.css"><main><h1>Page</h1><p>Readable in the light only</p><div class="wide">x</div></main>`,
		"/s.css": `p { color: #333; background: #fff } .wide { width: 600px; height: 1200px; color: #000; background: #fff }
			@media (prefers-color-scheme: dark) { p { background: #222 } }`,
	})
	tab := Open(t, url)
	for _, look := range Looks() {
		tab.Look(look)
		faults := strings.Join(tab.faults(), "\n")
		if got := strings.Contains(faults, "color-contrast"); got != look.Dark {
			t.Errorf("%s: axe finds a lack of contrast = %v, want %v\n%s", look, got, look.Dark, faults)
		}
		wide := tab.overflow()
		if got := slices.Contains(wide, "div.wide to 608"); got != (look.Width < 600) {
			t.Errorf("%s: what sticks out = %q, want div.wide on a phone only", look, wide)
		}
		path, err := tab.picture(tab.ctx, "a page/of two")
		if err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		config, err := png.DecodeConfig(file)
		_ = file.Close()
		if err != nil || config.Width != int(look.Width) || config.Height < 1200 {
			t.Errorf("%s is %d × %d, %v, want %d wide and all of the page", path, config.Width, config.Height, err, look.Width)
		}
	}
}

// Who waits for another page goes on waiting while the one before it is left.
func TestPollWhileAPageIsLeft(t *testing.T) {
	t.Parallel()
	url := site(t, map[string]string{"/a": "first", "/b": "second"})
	tab := Open(t, url+"/a")
	if _, there := poll[bool](tab, "wait", `(location.assign("/b"), new Promise(() => {}))`); there {
		t.Error("poll of a page that has been left says that it was there")
	}
	tab.WaitText("second")
}
