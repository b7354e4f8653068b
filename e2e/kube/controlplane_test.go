//go:build kube

package kube

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// controlPlane is a Kubernetes without nodes, on loopback, for all tests.
type controlPlane struct {
	dir        string
	url        string
	token      string // of an administrator
	kubeconfig string
	client     *http.Client
	processes  []*process // in the order in which they were started
}

// process is a server of it.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// startControlPlane starts everything and waits until it is ready. What it
// returns is to be stopped whatever the error says.
func startControlPlane(ctx context.Context, dir, tools string) (c *controlPlane, err error) {
	c = &controlPlane{dir: dir, token: rand.Text(), kubeconfig: filepath.Join(dir, "kubeconfig")}
	kubernetes := filepath.Join(tools, "kubernetes")
	ports, err := freePorts(3)
	if err != nil {
		return c, err
	}
	etcd, peers := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	c.url = "https://127.0.0.1:" + ports[2]
	signing, tokens, certificates := filepath.Join(dir, "accounts.key"), filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "certificates")
	if err := errors.Join(writeKey(signing), os.WriteFile(tokens, []byte(c.token+",admin,admin,system:masters\n"), 0o600), c.writeKubeconfig(certificates)); err != nil {
		return c, err
	}
	if err := c.start("etcd", "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers, "--unsafe-no-fsync"); err != nil {
		return c, err
	}
	if err := c.start(filepath.Join(kubernetes, "kube-apiserver"), "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", ports[2],
		"--cert-dir", certificates, "--token-auth-file", tokens, "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", signing, "--service-account-signing-key-file", signing); err != nil {
		return c, err
	}
	if err := c.ready(ctx, certificates); err != nil {
		return c, err
	}
	return c, c.start(filepath.Join(kubernetes, "kube-controller-manager"), "--kubeconfig", c.kubeconfig, "--leader-elect=false", "--secure-port", "0",
		"--service-account-private-key-file", signing, "--controllers", "*,-node-ipam-controller,-service-lb-controller,-node-route-controller")
}

// ready waits for the API server's certificate and for its word.
func (c *controlPlane) ready(ctx context.Context, certificates string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // the machine may be busy
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	problem := errors.New("its certificate is not there yet")
	for {
		if trusted, err := os.ReadFile(filepath.Join(certificates, "apiserver.crt")); err == nil {
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(trusted)
			c.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
			if _, problem = c.call(ctx, http.MethodGet, "/readyz", nil); problem == nil {
				return nil
			}
			c.client.CloseIdleConnections()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the API server: %w", problem)
		case <-c.processes[len(c.processes)-1].done:
			return errors.New("the API server has ended")
		case <-tick.C:
		}
	}
}

// start starts a server. It dies with these tests, whatever becomes of them:
// TestMain's thread lives as long.
func (c *controlPlane) start(program string, args ...string) error {
	p := &process{cmd: exec.Command(program, args...), log: filepath.Join(c.dir, filepath.Base(program)+".log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = log, log, c.dir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w; run `make e2e-kube`", program, err)
	}
	c.processes = append(c.processes, p)
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // it is stopped by a signal
	}()
	return nil
}

// stop ends everything, the last first.
func (c *controlPlane) stop() {
	if c.client != nil {
		c.client.CloseIdleConnections()
	}
	for i := len(c.processes) - 1; i >= 0; i-- {
		// Nothing is worth keeping, and the API server waits a minute for watchers.
		_ = c.processes[i].cmd.Process.Kill()
		<-c.processes[i].done
	}
}

// said is the end of what each server has logged.
func (c *controlPlane) said() string {
	var all strings.Builder
	for _, p := range c.processes {
		log, _ := os.ReadFile(p.log)
		lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
		fmt.Fprintf(&all, "== %s\n%s\n", p.log, bytes.Join(lines[max(0, len(lines)-15):], []byte("\n")))
	}
	return all.String()
}

func (c *controlPlane) writeKubeconfig(certificates string) error {
	return os.WriteFile(c.kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: admin}}]
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: admin, user: {token: %q}}]
`, c.url, filepath.Join(certificates, "apiserver.crt"), c.token), 0o600)
}

// freePorts are some that nobody listened on a moment ago.
func freePorts(count int) (ports []string, err error) {
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = listener.Close() }() // all at the end, so that they differ
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		ports = append(ports, port)
	}
	return ports, nil
}

// writeKey writes the key that signs the tokens of service accounts.
func writeKey(file string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}
