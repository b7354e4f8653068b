package charts

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A rented database has a certificate of its renter's authority, such as RDS: the
// chart's ca has Jobs and server trust it, and nothing else does.
func reachesByTLS(t *testing.T, program, database string) {
	rendered, complaint := trellis.template(t, trellisLeast+"ca: {configMap: rds}\n")
	if complaint != "" {
		t.Fatal(complaint)
	}
	all := decode(t, rendered)
	if out, err := container(t, program, podSpec(all.one(t, "Job")), database).CombinedOutput(); err != nil {
		t.Errorf("the migration fails: %v\n%s", err, out)
	}
	serves(t, container(t, program, podSpec(all.one(t, "Deployment")), database), all.one(t, "Deployment"), "http")

	rendered, _ = trellis.template(t, trellisLeast)
	out, err := container(t, program, podSpec(decode(t, rendered).one(t, "Job")), database).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "certificate signed by unknown authority") {
		t.Errorf("without the authority the migration says (err = %v): %s", err, out)
	}
}

// Argo CD, and whoever upgrades to an older chart, goes back by way of that
// chart's migration, of a database that a newer one has migrated.
func goesBack(t *testing.T, program, database string) {
	rendered, complaint := trellis.template(t, trellisLeast)
	if complaint != "" {
		t.Fatal(complaint)
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), "INSERT INTO tendril.schema_migrations (version_id, is_applied) VALUES (9999, true)")
	if err := errors.Join(err, conn.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	all := decode(t, rendered)
	if out, err := container(t, program, podSpec(all.one(t, "Job")), database).CombinedOutput(); err != nil {
		t.Errorf("the migration of a newer database: %v\n%s", err, out)
	}
	serves(t, container(t, program, podSpec(all.one(t, "Deployment")), database), all.one(t, "Deployment"), "http")
}

// Without its Secret, or with another key in it, a Job's pod starts and says so:
// one that waited would be gone, and its reason with it, when time is up.
func saysWhatIsMissing(t *testing.T, program string) {
	rendered, complaint := trellis.template(t, trellisLeast+"gc: {enabled: true}\n")
	if complaint != "" {
		t.Fatal(complaint)
	}
	all := decode(t, rendered)
	for _, o := range append(all.of("Job"), all.of("CronJob")...) {
		out, err := container(t, program, podSpec(o), "").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "TRELLIS_DATABASE_URL_FILE: the file ") || !strings.Contains(string(out), "no such file") {
			t.Errorf("%v without its Secret says (err = %v): %s", o.get("metadata", "name"), err, out)
		}
	}
	// The server waits: with it there is nobody who gives up.
	all.one(t, "Deployment").want(t, nil, "spec", "template", "spec", "volumes", "database", "secret", "optional")
}

// encrypted is the URL of a server that speaks TLS before the one that is given,
// which has a socket only.
func encrypted(t *testing.T, database string) string {
	t.Helper()
	of, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(of.Query().Get("host"), ".s.PGSQL."+of.Query().Get("port"))
	chain, key := certificate(t)
	pair, err := tls.X509KeyPair([]byte(chain), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { relay(client, socket, pair) })
		}
	})
	of.Host, of.RawQuery = listener.Addr().String(), "sslmode=verify-full"
	return of.String()
}

// relay ends when either side does.
func relay(client net.Conn, socket string, pair tls.Certificate) {
	defer func() { _ = client.Close() }()
	const requestOfTLS = 80877103 // see "SSLRequest" of the protocol
	var request [2]uint32
	if binary.Read(client, binary.BigEndian, &request) != nil || request[1] != requestOfTLS {
		return
	}
	server, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	if _, err := client.Write([]byte("S")); err != nil {
		_ = server.Close()
		return
	}
	safe := tls.Server(client, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(server, safe)
		_ = server.Close()
	})
	_, _ = io.Copy(safe, server)
	_ = client.Close()
	up.Wait()
}
