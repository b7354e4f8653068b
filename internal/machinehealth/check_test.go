package machinehealth

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/provision"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(os.Exit)) }

var loopback = Ranges{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// says listens, and sends a text on each connection.
func says(t *testing.T, text string) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, text)
			if text != "" {
				_ = conn.Close()
				continue
			}
			defer conn.Close() //nolint:errcheck // held until the test ends
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it is one
}

func TestCheck(t *testing.T) {
	t.Parallel()
	elsewhere := 0
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz":
			_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
		case "/moved":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case "/elsewhere":
			elsewhere++
		default:
			http.Error(w, "ill", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(site.Close)
	web := site.Listener.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it is one
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it is one
	_ = l.Close()
	silent := says(t, "")
	for _, tt := range []struct {
		kind   string
		port   int
		path   string
		found  provision.MachineHealth
		saying string
	}{
		{"tcp", silent, "", provision.Healthy, ""},
		{"tcp", closed, "", provision.Unhealthy, "connection refused"},
		{"ssh", says(t, "hello\r\nSSH-2.0-OpenSSH_9\r\n"), "", provision.Healthy, ""},
		{"ssh", says(t, "220 mail\r\n"), "", provision.Unhealthy, "no SSH server greets there"},
		{"ssh", says(t, strings.Repeat("y", 1<<20)), "", provision.Unhealthy, "greets there"},
		{"ssh", silent, "", provision.Unhealthy, "did not answer within 1s"},
		{"http", web, "/healthz", provision.Healthy, ""},
		{"http", web, "/moved", provision.Healthy, ""},
		{"http", web, "/ill", provision.Unhealthy, "status 503"},
		{"http", silent, "/healthz", provision.Unhealthy, "did not answer within 1s"},
		{"http", says(t, "220 mail\r\n"), "/healthz", provision.Unhealthy, "does not speak HTTP"},
		{"http", web, "@127.0.0.1:1/healthz", provision.Unhealthy, "the path that it asks for is none"},
		{"http", web, "//127.0.0.1:1/healthz", provision.Unhealthy, "the path that it asks for is none"},
		{"icmp", 1, "", provision.HealthUnknown, "does not know the check"},
	} {
		t.Run(fmt.Sprintf("%s %s %s", tt.kind, tt.path, tt.found), func(t *testing.T) {
			t.Parallel()
			found, why := Check(t.Context(), provision.HealthCheck{Kind: tt.kind, Target: "127.0.0.1", Port: tt.port, Path: tt.path, Timeout: 1}, loopback)
			if found != tt.found || !strings.Contains(why, tt.saying) || tt.saying == "" && why != "" || strings.Contains(why, "\x1b") {
				t.Errorf("Check() = %s, %q, want %s, … %q", found, why, tt.found, tt.saying)
			}
		})
	}
	t.Cleanup(func() {
		if elsewhere > 0 {
			t.Error("a redirect was followed")
		}
	})
}

// What is the agent's own is not asked, whatever says so.
func TestAddressesThatAreNotAsked(t *testing.T) {
	t.Parallel()
	port := says(t, "")
	for _, target := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1", "0.0.0.0", "::", "100.100.100.200", "64:ff9b::a9fe:a9fe", "fd00:ec2::254", "224.0.0.1", "localhost", "fe80::1%eth0", "", "127.1"} {
		if found, why := Check(t.Context(), provision.HealthCheck{Kind: "tcp", Target: target, Port: port, Timeout: 1}, nil); found != provision.HealthUnknown || why == "" {
			t.Errorf("Check(%q) = %s, %q, want that it is not asked", target, found, why)
		}
	}
	lab := Ranges{netip.MustParsePrefix("10.0.0.0/8")}
	for target, want := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "192.0.2.1": false, "127.0.0.1": false} {
		if _, err := lab.allow(target); (err == nil) != want {
			t.Errorf("allow(%s) = %v, want allowed %t", target, err, want)
		}
	}
}

// An agent that ends says nothing bad of a machine.
func TestCheckThatIsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if found, _ := Check(ctx, provision.HealthCheck{Kind: "ssh", Target: "127.0.0.1", Port: says(t, ""), Timeout: 60}, loopback); found != provision.HealthUnknown {
		t.Errorf("Check() = %s, want unknown", found)
	}
}
