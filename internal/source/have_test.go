package source

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// A server may make nothing of what is here.
func TestNextVersionWhereDifferencesAreRefused(t *testing.T) {
	t.Parallel()
	behind, server := gittest.NewServer(t, gittest.PlainHTTP()), gittest.NewServer(t)
	repo := versions(t, behind.Repo, 2)
	repo.URL = server.URL + "/acme/app.git"
	server.Override(onHave(t, behind.URL, gittest.Status(http.StatusForbidden)))
	s := newSource(t, options(t, server))
	checkout(t, s, Request{Repo: repo.URL, Version: "v1"})
	server.Reset()
	_, tree := checkout(t, s, Request{Repo: repo.URL, Version: "v2"})
	checkMirror(t, s, repo, tree, 2)
	if got := server.Requests().Packs; got != 2 {
		t.Errorf("packs asked for = %d, want one more, without what is here", got)
	}
}

// onHave has stumble answer what tells of commits that are here, and passes on
// the rest.
func onHave(t *testing.T, to string, stumble http.Handler) http.Handler {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte("have ")) {
			stumble.ServeHTTP(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

// Others break off, fail, or say nothing.
func TestNextVersionWhereAServerStumblesOverDifferences(t *testing.T) {
	t.Parallel()
	for name, stumble := range map[string]http.Handler{
		"fails":  gittest.Status(http.StatusInternalServerError),
		"resets": gittest.Reset(),
		"hangs":  gittest.Hang(make(chan struct{})),
		"closes": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			behind, server := gittest.NewServer(t, gittest.PlainHTTP()), gittest.NewServer(t)
			repo := versions(t, behind.Repo, 2)
			repo.URL = server.URL + "/acme/app.git"
			server.Override(onHave(t, behind.URL, stumble))
			opts := options(t, server)
			if name == "hangs" {
				opts.Git.Timeout = 20 * time.Second // of which a quarter is waited for it
			}
			s := newSource(t, opts)
			checkout(t, s, Request{Repo: repo.URL, Version: "v1"})
			server.Reset()
			_, tree := checkout(t, s, Request{Repo: repo.URL, Version: "v2"})
			checkMirror(t, s, repo, tree, 2)
			if got := server.Requests().Packs; got < 2 {
				t.Errorf("packs asked for = %d, want one more, without what is here", got)
			}
		})
	}
}

// A server that begins to answer has understood: what it then needs all the time
// for is not asked for again.
func TestNextVersionThatHangsIsWaitedForOnce(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo := versions(t, server.Repo, 2)
	opts := options(t, server)
	checkout(t, newSource(t, opts), Request{Repo: repo.URL, Version: "v1"})
	server.HangPack(4<<10, make(chan struct{}))
	opts.Git.Timeout = 8 * time.Second // a quarter of it for the beginning
	server.Reset()
	err := tryCheckout(t.Context(), t, newSource(t, opts), Request{Repo: repo.URL, Version: "v2"})
	wantFailure(t, err, provision.CodeCheckoutFailed, "no answer within 8s")
	if got := server.Requests().Packs; got != 1 {
		t.Errorf("packs asked for = %d, want 1", got)
	}
}

// Who is not let in is told so the first time.
func TestNextVersionOfWhatIsForbiddenIsAskedForOnce(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo := versions(t, server.Repo, 2)
	s := newSource(t, options(t, server))
	checkout(t, s, Request{Repo: repo.URL, Version: "v1"})
	server.Override(gittest.Status(http.StatusUnauthorized))
	server.Reset()
	err := tryCheckout(t.Context(), t, s, Request{Repo: repo.URL, Version: repo.Git("rev-parse", "v2^{commit}")})
	wantFailure(t, err, provision.CodeCheckoutFailed, "asks for credentials")
	wantRequests(t, server, 1, 0)
}

// A damaged mirror says nothing about what a server gives out.
func TestCommitWithoutANameOverADamagedMirror(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo := versions(t, server.Repo, 2)
	repo.Git("config", "uploadpack.allowFilter", "true") // the history is looked through without its files
	for i := range 3 {
		repo.Commit(gittest.Text(map[string]string{"main.tf": "# history\n", "history": noise(4 << 20)[(i+1)<<20 : (i+2)<<20]}))
	}
	commit := repo.Commit(gittest.Text(map[string]string{"main.tf": "# v3\n", "big.bin": noise(1 << 20), "grows.txt": growing(3)}))
	repo.Commit(gittest.Text(map[string]string{"main.tf": "# later\n"}))
	s := newSource(t, options(t, server))
	checkout(t, s, Request{Repo: repo.URL, Version: "v2"})
	rewrite(t, mirrorOf(t, s, repo.URL), "*.pack", func(pack []byte) []byte {
		for i := packHeader; i < len(pack); i++ {
			pack[i] ^= 0xa5
		}
		return pack
	})
	server.Reset()
	_, tree := checkout(t, s, Request{Repo: repo.URL, Version: commit})
	checkMirror(t, s, repo, tree, 3)
	if got := server.Requests().Bytes; got > 2<<20 {
		t.Errorf("fetched %d bytes, want the commit without its history", got)
	}
}

// What a difference is to may be damaged, or not be here after all.
func TestNextVersionOverADamagedMirror(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo := versions(t, server.Repo, 3)
	for name, damage := range map[string]func(*testing.T, mirror){
		"pack is garbage": func(t *testing.T, m mirror) { rewrite(t, m, "*.pack", garble) },
		"pack is gone":    func(t *testing.T, m mirror) { drop(t, m, "*.pack") },
		"index is empty":  func(t *testing.T, m mirror) { rewrite(t, m, "*.idx", nothing) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSource(t, options(t, server))
			checkout(t, s, Request{Repo: repo.URL, Version: "v2"})
			damage(t, mirrorOf(t, s, repo.URL))
			_, tree := checkout(t, s, Request{Repo: repo.URL, Version: "v3"})
			checkMirror(t, s, repo, tree, 3)
		})
	}
}
