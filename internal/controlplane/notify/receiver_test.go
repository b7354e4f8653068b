package notify

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestReceiverURLs(t *testing.T) {
	t.Parallel()
	allowed, err := ParseAllowed([]string{"10.0.0.0/8", "hooks.internal", "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{
		"https://hooks.slack.com/services/T/B/x": "", "https://h.example:8443/p?q=1": "", "https://8.8.8.8/": "",
		"http://hooks.internal/x": "", "http://10.1.2.3/x": "", "http://127.0.0.1:9/": "",
		"http://h.example/": "https://", "ftp://h.example/": "https://", "https:///x": "must be a URL", "x": "must be a URL", "https://u:p@h.example/": "user",
		"https://127.0.0.2/": "not an address on the Internet", "https://[::1]/": "not an address", "https://[::ffff:169.254.169.254]/": "not an address",
		"https://h.example/" + strings.Repeat("x", 2000): "must be a URL",
	} {
		_, err := allowed.parse(url)
		if got := err == nil; got != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("parse(%.60q) = %v, want %q", url, err, want)
		}
	}
	for _, word := range []string{"", "http://x", "10.0.0.0/33", "a b", "*.example"} {
		if _, err := ParseAllowed([]string{word}); err == nil {
			t.Errorf("ParseAllowed(%q) = nil, want it refused", word)
		}
	}
}

// A name that stands for an address here is refused when it is dialled: nothing
// arrives, and the log says why without the URL.
func TestNamesAreLookedAtWhenDialled(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(_ int, w http.ResponseWriter) { w.WriteHeader(http.StatusOK) })
	key := &Key{make([]byte, keySize)}
	_, port, _ := strings.Cut(strings.TrimPrefix(r.URL, "http://"), ":")
	id := uuid.New()
	for name, c := range map[string]struct {
		allowed Allowed
		arrives bool
	}{
		"refused":             {Allowed{}, false},
		"another is allowed":  {Allowed{hosts: []string{"elsewhere"}}, false},
		"the name is allowed": {Allowed{hosts: []string{"localhost"}}, true},
		"the network is":      {Local, true},
	} {
		scheme := "https"
		if c.arrives {
			scheme = "http"
		}
		s := sender{key: key, allowed: c.allowed}
		a := s.send(t.Context(), delivery{ID: uuid.New(), WebhookID: id, Payload: []byte(`{"type": "test"}`), Sealed: key.seal(id, scheme+"://localhost:"+port+"/s3cret")})
		if a.Arrived != c.arrives || !c.arrives && !strings.Contains(a.Error, "not an address on the Internet") || strings.Contains(a.Error, "s3cret") {
			t.Errorf("%s: %+v, want arrived %t", name, a, c.arrives)
		}
	}
	if got := len(r.messages()); got != 2 {
		t.Errorf("%d messages arrived, want 2", got)
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, NewKey(), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := ReadKey(file)
	if err != nil {
		t.Fatalf("ReadKey() = %v, want nil", err)
	}
	one, other := uuid.New(), uuid.New()
	sealed := key.seal(one, "https://h.example/x")
	if url, err := key.open(one, sealed); err != nil || url != "https://h.example/x" {
		t.Errorf("open(seal()) = %q, %v, want the URL", url, err)
	}
	if _, err := key.open(other, sealed); err == nil {
		t.Error("another webhook opens it")
	}
	if _, err := (&Key{make([]byte, keySize)}).open(one, sealed); err == nil {
		t.Error("another key opens it")
	}
	if key.Secret(one, 1) == key.Secret(one, 2) || key.Secret(one, 1) == key.Secret(other, 1) {
		t.Error("two secrets are the same")
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(file); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("ReadKey() of what all can read = %v, want it refused", err)
	}
	if err := os.WriteFile(file, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(file); err == nil || !strings.Contains(err.Error(), "has no key") {
		t.Errorf("ReadKey() of something else = %v, want it refused", err)
	}
	n := New(nil, Options{Log: slog.New(slog.DiscardHandler)})
	if n.Ready() {
		t.Error("a notifier without a key says that it is ready")
	}
	n.Run(t.Context()) // does nothing, and ends
}
