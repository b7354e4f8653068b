package proxies

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// nginx proxies HTTPS to a server that speaks HTTP. Apart from paths it has its defaults: it
// speaks HTTP/1.0 to the server and names the server as the host, buffers bodies and answers,
// takes bodies of 1 MiB, and waits 60 s for an answer.
func nginx(t *testing.T, server string) (address string) {
	t.Helper()
	dir := pgtest.Dir(t)
	certificate, key := site.Certificate(t)
	address = site.Address(t)
	temporary := ""
	for _, of := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temporary += fmt.Sprintf("  %s_temp_path %s;\n", of, filepath.Join(dir, of))
	}
	config := fmt.Sprintf(`daemon off;
user root;
pid %[1]s/pid;
error_log stderr;
events {}
http {
%[2]s  access_log off;
  server {
    listen %[3]s ssl;
    ssl_certificate %[4]s;
    ssl_certificate_key %[5]s;
    location / { proxy_pass http://%[6]s; }
  }
}
`, dir, temporary, address, certificate, key, server)
	file := write(t, dir, "nginx.conf", config)
	run(t, address, nil, program("nginx"), "-p", dir, "-e", "stderr", "-c", file)
	return address
}

// haproxy is such a proxy with the time-outs of Debian's own configuration, which HAProxy
// demands.
func haproxy(t *testing.T, server string) (address string) {
	t.Helper()
	dir := pgtest.Dir(t)
	certificate, key := site.Certificate(t)
	both := read(t, certificate) + read(t, key)
	address = site.Address(t)
	config := fmt.Sprintf(`defaults
  mode http
  timeout connect 5000
  timeout client 50000
  timeout server 50000
frontend agents
  bind %s ssl crt %s
  default_backend trellis
backend trellis
  server one %s
`, address, write(t, dir, "both.pem", both), server)
	run(t, address, nil, program("haproxy"), "-db", "-f", write(t, dir, "haproxy.cfg", config))
	return address
}

// program finds a server's program, whose directory is not on everybody's PATH.
func program(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return "/usr/sbin/" + name
}

func write(t *testing.T, dir, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// run starts a server with an environment, waits until it listens and ends it with the test. What
// it says is shown if the test fails.
func run(t *testing.T, address string, env []string, argv ...string) (pid int) {
	t.Helper()
	said := &outputtest.Buffer{}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, said, said
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: run `make deps`", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // what it says tells
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-done:
		case <-patience.After(site.Patience):
			t.Errorf("%s does not end", argv[0])
			_ = cmd.Process.Kill()
			<-done
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", argv[0], said)
		}
	})
	limit := patience.Begin(site.Patience)
	for {
		if conn, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			_ = conn.Close() // it is there
			return cmd.Process.Pid
		}
		select {
		case <-done:
			t.Fatalf("%s ended:\n%s", strings.Join(argv, " "), said)
		default:
		}
		if limit.Over() {
			t.Fatalf("%s does not listen", argv[0])
		}
		limit.Pause()
	}
}
