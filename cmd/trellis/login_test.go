package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/testkit/pages"
)

// A person logs in by a browser, and by a token; asks two servers; logs out.
func testLogin(t *testing.T, dir string, runtime instance.Runtime) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "new", "trellis.toml")
	env := []string{"TRELLIS_CONFIG=" + config, "HOME=" + t.TempDir()}
	run := func(args ...string) result { return trellisEnv(t, env, args...) }

	run("contexts").want(t, "contexts of nobody", exitOK, "local", "not running")
	run("login").want(t, "login to nothing", exitUsage, "name the server")
	run("login", "https://ada:hunter2@trellis.example").want(t, "login with a password", exitUsage, "no user and no password")
	run("login", "http://127.0.0.1:1", "--no-browser").want(t, "login where nothing is", exitUnreachable, "127.0.0.1:1 cannot be reached")
	run("logout").want(t, "logout of nothing", exitUsage, "there is nothing to log out of")
	run("status", "--context", "nowhere").want(t, "a context that is not there", exitUsage, `there is no context "nowhere"`)
	trellisEnv(t, append(env, "TRELLIS_URL="+runtime.URL), "status").want(t, "a server without a token", exitFailed, "you are not logged in to "+runtime.URL)
	trellisEnv(t, append(env, "TRELLIS_URL="+runtime.URL, "TRELLIS_TOKEN=trt_nobodys"), "status").want(t, "a wrong token", exitFailed, "does not know you", "the token is that of TRELLIS_TOKEN", "trellis login "+runtime.URL)

	// The browser says no, then yes.
	link := run("link", "--data-dir", dir)
	browser := signedIn(t, strings.TrimSpace(link.out))
	for answer, page := range map[string]string{"no": "Nothing was allowed.", "yes": "ou may close this page"} {
		login := beginEnv(t, env, append(typed(pages.Code(t, "docs/GUIDE.md", "trellis login https://tendril.example", "https://tendril.example", runtime.URL)), "--no-browser", "--name", "browser-"+answer)...)
		login.await(t, "/cli/authorize?")
		asked := regexp.MustCompile(`http://\S+/cli/authorize\S+`).FindString(login.said.String())
		back := answerPage(t, browser, strings.Replace(asked, runtime.URL, runtime.BrowserURL, 1), answer)
		if !strings.Contains(back, page) {
			t.Errorf("after a %s the browser has %q, want %q in it", answer, back, page)
		}
		if answer == "no" { // nobody tells the CLI: the browser stays where it is
			login.signal(os.Interrupt)
		}
		if code := login.end(t); (code == exitOK) != (answer == "yes") || answer == "yes" && !strings.Contains(login.said.String(), "You are logged in to "+runtime.URL+" as Local user; the context") {
			t.Errorf("login after a %s = %d, it said:\n%s", answer, code, login.said)
		}
	}
	kept, err := os.ReadFile(config)
	if err != nil || !strings.Contains(string(kept), "trt_") || strings.Contains(string(kept), "browser-no") {
		t.Fatalf("the file is %s, %v, want the token of the yes alone", kept, err)
	}
	run("whoami").want(t, "whoami", exitOK, runtime.URL, "Local user", "as admin")
	run("status", "-o", "json").want(t, "status", exitOK)

	// A second context, by the token of the instance, from standard input.
	cmd := command(t, env, "login", runtime.URL, "--token-file", "-", "--name", "token", "-o", "json")
	cmd.Stdin = strings.NewReader(runtime.APIToken + "\n")
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), `"current": true`) || strings.Contains(string(out), "trt_") {
		t.Errorf("login --token-file = %s, %v, want the context, and nothing of its token", out, err)
	}
	var list []shownContext
	r := run("contexts", "list", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list) != 3 || strings.Contains(r.out, "trt_") {
		t.Errorf("contexts = %s, %v, want local and two more, without tokens", r.out, err)
	}
	run("contexts", "use", "browser").want(t, "use of none", exitUsage, "there are: browser-yes, token")
	run("contexts", "use", "browser-yes").want(t, "use", exitOK, "is the current one")
	run("webhooks", "add", "w", "--url-file", "https://hooks.example/hunter2").want(t, "a URL on the command line", exitUsage, "names no file")
	run("webhooks", "test", "w").want(t, "test of none", exitFailed, `there is no webhook "w"`)
	run("api-tokens", "list").want(t, "api-tokens", exitOK, "trellis on", "trellis up on")

	run("api-tokens", "create", "assistant", "--may-apply", "lab/*", "--no-destroy", "--print").want(t, "a token's page", exitOK, runtime.URL+"/account?", "change=propose", "may_apply=lab%2F%2A", "name=assistant")
	run("api-tokens", "create", "assistant", "--propose", "--runs-per-hour", "7", "--calls-per-minute", "30", "--print").want(t, "a token with limits", exitOK, "change=propose", "runs_per_hour=7", "calls_per_minute=30")
	run("api-tokens", "create", "reader", "--read-only", "--calls-per-minute", "30", "--print").want(t, "a reader with a limit", exitOK, "change=nothing", "calls_per_minute=30")
	run("api-tokens", "create", "all", "--calls-per-minute", "30").want(t, "a limit of what may do all", exitUsage, "add --read-only or --propose")
	run("api-tokens", "create", "assistant", "--propose", "--calls-per-minute", "6001").want(t, "a limit that there is not", exitUsage, "1 to 6000")
	run("api-tokens", "create", "assistant", "--runs-per-hour", "0").want(t, "a limit that there is not", exitUsage, "1 to 1000")
	run("api-tokens", "create", "assistant", "--read-only", "--may-approve").want(t, "two kinds of powers", exitUsage, "--read-only goes with none")
	run("api-tokens", "create", "assistant", "--days", "8").want(t, "a time that the page does not offer", exitUsage, "7, 30, 90 or 366")

	// The token ends with the logout; the other one goes on.
	token := regexp.MustCompile(`trt_[\w-]{43}`).FindString(string(kept))
	run("logout").want(t, "logout", exitOK, "You are logged out of "+runtime.URL)
	trellisEnv(t, append(env, "TRELLIS_URL="+runtime.URL, "TRELLIS_TOKEN="+token), "whoami").want(t, "a token that was logged out", exitFailed, "does not know you")
	run("whoami").want(t, "whoami by no context", exitUnreachable, "trellis up is not running")
	run("whoami", "--context", "token").want(t, "whoami by the other", exitOK, "Local user")
	run("whoami", "--server", runtime.URL+"/").want(t, "whoami by the server's URL", exitOK, "Local user")
	run("whoami", "--data-dir", dir).want(t, "whoami of what runs here", exitOK, "Local user")
	run("open", "--print", "--context", "token").want(t, "open", exitOK, runtime.URL+"/\n")

	// Nothing is read from what others can read.
	if err := os.Chmod(config, 0o644); err != nil {
		t.Fatal(err)
	}
	run("whoami", "--context", "token").want(t, "whoami by a file of everybody", exitFailed, "can be read or written by others")
}

// signedIn is a browser that has used a one-time link.
func signedIn(t *testing.T, link string) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if host, port, err := net.SplitHostPort(address); err == nil && strings.HasSuffix(host, ".localhost") { // as browsers do
			address = net.JoinHostPort("127.0.0.1", port)
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	browser := &http.Client{Jar: jar, Transport: transport}
	u, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	post(t, browser, link, u.Query())
	return browser
}

// answerPage says yes or no to what a CLI asks, and returns what the browser has
// then.
func answerPage(t *testing.T, browser *http.Client, page, answer string) string {
	t.Helper()
	u, err := url.Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	form := u.Query()
	form.Set("answer", answer)
	u.RawQuery = ""
	return post(t, browser, u.String(), form)
}

func post(t *testing.T, browser *http.Client, to string, form url.Values) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Sec-Fetch-Site", "same-origin")
	response, err := browser.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("POST %s = %d %s, %v, want 200", to, response.StatusCode, body, err)
	}
	return string(body)
}
