package source

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"golang.org/x/crypto/ssh"
)

// sshSession runs git-upload-pack on the other side. It replaces go-git's SSH
// transport, which reads the user's ssh_config and cannot be cancelled while
// it connects.
type sshSession struct {
	client  *ssh.Client
	run     *ssh.Session
	unhook  func() bool
	maxRefs int64

	stdin  io.WriteCloser
	stdout *limitedReader
	stderr *headBuffer
	asked  bool
}

// openSSH connects, checks the host's key and starts git-upload-pack. When ctx
// ends the connection is closed, which ends whatever waits for it.
func (s *Source) openSSH(ctx context.Context, a address) (session, error) {
	client, unhook, err := s.dialSSH(ctx, a)
	if err != nil {
		return nil, err
	}
	session := &sshSession{client: client, unhook: unhook, maxRefs: s.limits.refs}
	if err := session.start(a.DialPath); err != nil {
		unhook()
		_ = client.Close()
		return nil, err
	}
	return session, nil
}

// dialSSH connects, checks the host's key and identifies this agent. Until
// unhook is called the connection ends with ctx.
func (s *Source) dialSSH(ctx context.Context, a address) (_ *ssh.Client, unhook func() bool, err error) {
	host := net.JoinHostPort(strings.Trim(a.Host, "[]"), cmp.Or(a.Port, "22"))
	config, done, err := s.sshConfig(ctx, a, host)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, nil, err
	}
	unhook = context.AfterFunc(ctx, func() { _ = conn.Close() })
	inner, channels, requests, err := ssh.NewClientConn(conn, host, config)
	if err != nil {
		unhook()
		_ = conn.Close()
		return nil, nil, fmt.Errorf("ssh: %w", err)
	}
	return ssh.NewClient(inner, channels, requests), unhook, nil
}

func (s *sshSession) start(path string) error {
	run, err := s.client.NewSession()
	if err != nil {
		return fmt.Errorf("ssh: %w", err)
	}
	s.run = run
	if s.stdin, err = run.StdinPipe(); err != nil {
		return err
	}
	stdout, err := run.StdoutPipe()
	if err != nil {
		return err
	}
	s.stdout = &limitedReader{r: stdout, left: s.maxRefs}
	s.stderr = &headBuffer{limit: 4 << 10}
	run.Stderr = s.stderr
	// Paths hold no quote (see address), so that this quoting is complete.
	path = strings.ReplaceAll(path, "%20", " ")
	if err := run.Start("git-upload-pack '" + path + "'"); err != nil {
		return fmt.Errorf("ssh: start git-upload-pack: %w", err)
	}
	return nil
}

// lastWords is how long a server that has ended its answer may take to say why.
const lastWords = 5 * time.Second

func (s *sshSession) AdvertisedReferencesContext(context.Context) (*packp.AdvRefs, error) {
	refs := packp.NewAdvRefs()
	err := refs.Decode(s.stdout)
	switch {
	case errors.Is(err, packp.ErrEmptyAdvRefs):
		return nil, transport.ErrEmptyRemoteRepository
	case errors.Is(err, packp.ErrEmptyInput):
		// The far side says why on stderr, which may come after the end of its
		// stdout: its end is waited for, but not for ever.
		late := time.AfterFunc(lastWords, func() { _ = s.client.Close() })
		_ = s.run.Wait()
		late.Stop()
		_ = s.client.Close()
		_ = s.client.Wait()
		return nil, &remoteError{said: s.stderr.String()}
	case err != nil:
		return nil, err
	case refs.IsEmpty():
		return nil, transport.ErrEmptyRemoteRepository
	}
	transport.FilterUnsupportedCapabilities(refs.Capabilities)
	s.stdout.lift()
	return refs, nil
}

func (s *sshSession) UploadPack(_ context.Context, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	s.asked = true
	unsent := s.ask(req)
	res := packp.NewUploadPackResponse(req)
	err := res.Decode(io.NopCloser(s.stdout))
	// A server that refuses may be gone before it has heard all; why it does
	// tells more than that.
	if err != nil && unsent != nil && isNetwork(err) {
		err = unsent
	}
	return res, err
}

func (s *sshSession) ask(req *packp.UploadPackRequest) error {
	if err := req.UploadRequest.Encode(s.stdin); err != nil {
		return err
	}
	if err := req.UploadHaves.Encode(s.stdin, false); err != nil {
		return err
	}
	return pktline.NewEncoder(s.stdin).EncodeString("done\n")
}

func (s *sshSession) Close() error {
	if !s.asked {
		_ = pktline.NewEncoder(s.stdin).Flush() // the polite way to want nothing
	}
	s.unhook()
	err := s.client.Close()
	_ = s.client.Wait()
	return err
}

// limitedReader fails once left bytes were read, until the limit is lifted.
type limitedReader struct {
	r      io.Reader
	left   int64
	lifted bool
}

func (l *limitedReader) lift() { l.lifted = true }

func (l *limitedReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 && !l.lifted {
		return 0, errTooManyRefs
	}
	return n, err
}

// headBuffer keeps the first bytes written to it.
type headBuffer struct {
	mu    sync.Mutex
	head  bytes.Buffer
	limit int
}

func (b *headBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.head.Write(p[:min(len(p), b.limit-b.head.Len())])
	return len(p), nil
}

func (b *headBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.head.String()
}
