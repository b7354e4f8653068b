// Package pgbouncer gives tests a real PgBouncer in front of the PostgreSQL of
// package pgtest. It must not know what is asked through it.
package pgbouncer

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// socketPort names the socket file; nothing listens on it.
const socketPort = "6432"

// Pooler is a PgBouncer in front of a server. Whoever connects through it is
// authenticated as by the server.
type Pooler struct{ dir string }

// Start starts a PgBouncer in transaction mode in front of the server of a
// database's URL, in which that URL's role may read the passwords of others. It
// is stopped when the test is over. Settings are those of PgBouncer's file and
// come before its defaults.
func Start(t testing.TB, databaseURL string, settings map[string]string) *Pooler {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // not on everybody's PATH
	}
	database, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatalf("pgbouncer.Start: the database's URL cannot be read") // the error would show it
	}
	p := &Pooler{dir: pgtest.Dir(t)}
	password, _ := database.User.Password()
	all := map[string]string{
		"pool_mode": "transaction", "default_pool_size": "4", "max_client_conn": "400",
		"unix_socket_dir": p.dir, "listen_port": socketPort,
		"auth_type": "scram-sha-256", "auth_file": filepath.Join(p.dir, "users"),
		"auth_user": database.User.Username(), "auth_query": "SELECT usename, passwd FROM pg_shadow WHERE usename = $1",
	}
	maps.Copy(all, settings)
	var file strings.Builder
	fmt.Fprintf(&file, "[databases]\n* = host=%s port=%s\n[pgbouncer]\n", database.Query().Get("host"), database.Query().Get("port"))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&file, "%s = %s\n", name, all[name])
	}
	p.write(t, "users", fmt.Sprintf("%q %q\n", database.User.Username(), password))
	p.write(t, "pgbouncer.ini", file.String())
	p.run(t, program, database.Query().Get("host"))
	return p
}

// write makes a file that only the pooler's account, which the directory is
// given to, has to read.
func (p *Pooler) write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		t.Fatalf("pgbouncer.Start: %v", err)
	}
}

// run runs the program as whoever owns the server's socket: PgBouncer refuses
// root as PostgreSQL does, and nobody else may enter that directory.
func (p *Pooler) run(t testing.TB, program, sockets string) {
	t.Helper()
	var said bytes.Buffer
	var as *syscall.SysProcAttr
	if os.Geteuid() == 0 {
		info, err := os.Stat(sockets)
		if err != nil {
			t.Fatalf("pgbouncer.Start: %v", err)
		}
		owner := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // it is, where we are root
		as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
		for _, path := range []string{p.dir, filepath.Join(p.dir, "users"), filepath.Join(p.dir, "pgbouncer.ini")} {
			if err := os.Chown(path, int(owner.Uid), int(owner.Gid)); err != nil {
				t.Fatalf("pgbouncer.Start: %v", err)
			}
		}
	}
	start := func() (*exec.Cmd, error) {
		cmd := exec.Command(program, filepath.Join(p.dir, "pgbouncer.ini"))
		cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &said, &said, as
		cmd.Dir, cmd.Env = "/", []string{"LC_ALL=C"}
		return cmd, cmd.Start()
	}
	cmd, err := start()
	if err != nil {
		t.Fatalf("pgbouncer.Start: %v (scripts/test-deps.sh installs PgBouncer)", err)
	}
	ended := make(chan error, 1)
	var mu sync.Mutex // of what follows, and of cmd
	var ready, stopped bool
	go func() {
		for {
			err := cmd.Wait()
			mu.Lock()
			if !ready || stopped {
				mu.Unlock()
				ended <- err
				return
			}
			// PgBouncer 1.18 ends itself now and then where clients and their cancel requests are
			// cut off ("bad client state"). Whatever runs it starts it again, and so does this.
			said.WriteString("it has ended, and is started again\n")
			_ = os.Remove(filepath.Join(p.dir, ".s.PGSQL."+socketPort)) // it may be gone
			if cmd, err = start(); err != nil {
				stopped = true
				mu.Unlock()
				ended <- err
				return
			}
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		mu.Lock()
		stopped = true
		_ = cmd.Process.Kill() // it has nothing to lose
		mu.Unlock()
		<-ended
		if t.Failed() {
			t.Logf("pgbouncer said:\n%s", said.String())
		}
	})
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for limit := patience.Begin(time.Minute); ; {
		conn, err := new(net.Dialer).DialContext(context.Background(), "unix", filepath.Join(p.dir, ".s.PGSQL."+socketPort))
		if err == nil {
			_ = conn.Close()
			mu.Lock()
			defer mu.Unlock()
			ready = true
			return
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("pgbouncer.Start: pgbouncer ended: %v\n%s", err, said.String())
		case <-tick.C:
			if limit.Over() {
				t.Fatalf("pgbouncer.Start: pgbouncer does not answer: %v", err)
			}
		}
	}
}

// URL is a database's URL by way of the pooler.
func (p *Pooler) URL(t testing.TB, databaseURL string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatalf("pgbouncer.Pooler: the database's URL cannot be read") // the error would show it
	}
	query := u.Query()
	query.Set("host", p.dir)
	query.Set("port", socketPort)
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	return u.String()
}
