package config

import (
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/secrettest"
)

// What stands in files of its own is read again, as a kubelet replaces it, and
// checked as it was at the start. What is wrong with it is said without it.
func TestWhatIsReadAgain(t *testing.T) {
	t.Parallel()
	const listen = "postgres://agent:first@direct/tendril"
	files := func(url, listen, token string) map[string]string {
		return map[string]string{"url": url + "\n", "listen": listen + "\n", "token": token + "\n"}
	}
	secret := secrettest.Mount(t, files(testURL, listen, testToken))
	got, err := Load("", []string{"HOME=/h", "TENDRIL_NAME=a", "TENDRIL_QUEUE_URL_FILE=" + secret.Path("url"),
		"TENDRIL_QUEUE_LISTEN_URL_FILE=" + secret.Path("listen"), "TENDRIL_QUEUE_TOKEN_FILE=" + secret.Path("token")})
	if err != nil || got.Queue.URL != testURL || got.Queue.ListenURL != listen {
		t.Fatalf("Load() = %q, %q, %v, want the files' URLs", got.Queue.URL, got.Queue.ListenURL, err)
	}
	secret.Replace(t, files("postgres://agent:second@db/tendril", "postgres://agent:second@direct/tendril", "tnd_second"))
	url, err := got.Queue.URLNow()
	if err != nil || url != "postgres://agent:second@db/tendril" {
		t.Errorf("URLNow() = %q, %v, want what is in the file now", url, err)
	}
	url, err = got.Queue.ListenURLNow()
	if err != nil || url != "postgres://agent:second@direct/tendril" {
		t.Errorf("ListenURLNow() = %q, %v, want what is in the file now", url, err)
	}
	token, err := got.Queue.TokenNow()
	if err != nil || token.Reveal() != "tnd_second" {
		t.Errorf("TokenNow() = %q, %v, want what is in the file now", token.Reveal(), err)
	}
	for _, tc := range []struct{ content, url, token string }{
		{"", "is empty; it must hold postgres://", "does not hold a cluster's token"},
		{"https://hunter2.example", "must hold postgres://USER:PASSWORD@HOST/DATABASE, as it did", "does not hold a cluster's token"},
		{"postgres://agent:hunter2@2@db/tendril", "write @ in its user or password as %40", "does not hold a cluster's token"},
		{"tnd_hunter2 tnd_x", "must hold postgres://", "is one word"},
	} {
		secret.Replace(t, files(tc.content, tc.content, tc.content))
		for name, now := range map[string]func() (string, error){"queue.url_file": got.Queue.URLNow, "queue.listen_url_file": got.Queue.ListenURLNow} {
			if _, err := now(); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), tc.url) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s of %q: %v, want an error with %q and without the text", name, tc.content, err, tc.url)
			}
		}
		if _, err := got.Queue.TokenNow(); err == nil || !strings.Contains(err.Error(), "queue.token_file") || !strings.Contains(err.Error(), tc.token) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("token of %q: %v, want an error with %q and without the text", tc.content, err, tc.token)
		}
	}
}

// What the environment says is what it was: it beats the files.
func TestWhatIsNotReadAgain(t *testing.T) {
	t.Parallel()
	got, err := Load("", minimal("TENDRIL_QUEUE_URL_FILE=/none", "TENDRIL_QUEUE_LISTEN_URL="+testURL, "TENDRIL_QUEUE_LISTEN_URL_FILE=/none", "TENDRIL_QUEUE_TOKEN_FILE=/none"))
	if err != nil {
		t.Fatal(err)
	}
	url, urlErr := got.Queue.URLNow()
	listen, listenErr := got.Queue.ListenURLNow()
	token, tokenErr := got.Queue.TokenNow()
	if url != testURL || urlErr != nil || listen != testURL || listenErr != nil || token.Reveal() != testToken || tokenErr != nil {
		t.Errorf("URLNow() = %q, %v; ListenURLNow() = %q, %v; TokenNow() = %q, %v, want what the environment says", url, urlErr, listen, listenErr, token.Reveal(), tokenErr)
	}
}

// The URL to listen at has the same rules as the queue's, and may say "off".
func TestListenURLFile(t *testing.T) {
	t.Parallel()
	off, odd := write(t, "url", "off\n", 0o600), write(t, "url", "https://agent:hunter2@db", 0o600)
	if got, err := Load("", minimal("TENDRIL_QUEUE_LISTEN_URL_FILE="+off)); err != nil || got.Queue.ListenURL != "off" {
		t.Errorf("Load(a file with off) = %q, %v", got.Queue.ListenURL, err)
	}
	_, err := Load("", minimal("TENDRIL_QUEUE_LISTEN_URL_FILE="+odd))
	wantProblems(t, "Load(no URL of Postgres)", err, "queue.listen_url ("+odd+"): must be "+listenURLs)
	_, err = Load("", minimal("TENDRIL_QUEUE_LISTEN_URL_FILE=/none"))
	wantProblems(t, "Load(no file)", err, `queue.listen_url_file = "/none": cannot be read: stat /none: no such file or directory`)
	path := write(t, "tendril.toml", "[queue]\nlisten_url = \"off\"\nlisten_url_file = \""+off+"\"", 0o600)
	_, err = Load(path, minimal())
	wantProblems(t, "Load(both)", err, "queue.listen_url_file: queue.listen_url is set as well; keep one of them")
}
