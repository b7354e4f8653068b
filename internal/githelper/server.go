package githelper

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/process"
)

// Lender has the credentials and decides who gets them. Its remarks are for
// people and hold no secret. It is used concurrently.
type Lender interface {
	// Password returns what to show at the server of a repository, "" for
	// nothing; then the remark may say why.
	Password(url string) (username, password, remark string)
	// Refused returns a remark on a password that the server has refused.
	Refused(url string) (remark string)
	// SSH runs a command on a host. It returns the command's exit status, or a
	// remark on why it was not run.
	// Closing stdin ends a read of it.
	SSH(ctx context.Context, command SSH, stdin io.ReadCloser, stdout, stderr io.Writer) (status int, remark string)
}

// Server answers the helpers that descend from this process.
type Server struct {
	lender   Lender
	name     string
	listener *net.UnixListener
	ctx      context.Context //nolint:containedctx // that of all its conversations
	cancel   context.CancelFunc
	serving  sync.WaitGroup
}

// Serve listens until Close. The socket is an abstract one: no path that is too
// long, no file for another uid to be kept from or let at.
func Serve(ctx context.Context, lender Lender) (*Server, error) {
	s := &Server{lender: lender, name: "@tendril-git-" + rand.Text()}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: s.name, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("listen for git's helpers: %w", err)
	}
	s.listener = listener
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.serving.Go(s.accept)
	return s, nil
}

// Close ends all conversations and waits for them.
func (s *Server) Close() {
	s.cancel()
	_ = s.listener.Close()
	s.serving.Wait()
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			return
		}
		s.serving.Go(func() {
			defer func() { _ = conn.Close() }()
			unhook := context.AfterFunc(s.ctx, func() { _ = conn.Close() })
			defer unhook()
			s.serve(conn)
		})
	}
}

// patience is how long a helper may take to say what it wants.
const patience = 10 * time.Second

func (s *Server) serve(conn *net.UnixConn) {
	if err := descends(conn); err != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	var req request
	files, err := receive(conn, &req)
	if err != nil {
		return
	}
	defer closeAll(files)
	_ = conn.SetReadDeadline(time.Time{})
	var answer reply
	switch {
	case req.Verb == verbGet:
		answer.Username, answer.Password, answer.Remark = s.lender.Password(req.URL)
	case req.Verb == verbErase:
		answer.Remark = s.lender.Refused(req.URL)
	case req.Verb == verbSSH && len(files) == 3:
		answer.Status, answer.Remark = s.ssh(conn, req.SSH, files)
	default:
		return
	}
	_ = send(conn, answer) // a helper that is gone needs no answer
}

// ssh runs the command for as long as the helper, which git ends, is there.
func (s *Server) ssh(conn *net.UnixConn, command SSH, files []*os.File) (int, string) {
	ctx, cancel := context.WithCancel(s.ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = conn.Read(make([]byte, 1)) // it says nothing more: this is its end
		cancel()
	}()
	status, remark := s.lender.SSH(ctx, command, files[0], files[1], files[2])
	_ = conn.CloseRead() // wakes the reader
	<-gone
	return status, remark
}

// descends checks that the other side is a process of this one's. Others of the
// same uid, which run other templates, get nothing.
func descends(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) {
		peer, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || asked != nil {
		return errors.Join(err, asked)
	}
	ours, err := process.Descends(int(peer.Pid), os.Getpid())
	if err == nil && !ours {
		err = fmt.Errorf("process %d is none of this run's", peer.Pid)
	}
	return err
}

// request is the one message of a helper.
type request struct {
	// Verb is one of those below.
	Verb string `json:"verb"`
	// URL is the repository's, of get and erase.
	URL string `json:"url,omitempty"`
	SSH SSH    `json:"ssh"`
}

const (
	verbGet   = "get"   // asks for a password
	verbErase = "erase" // says that a password was refused
	verbSSH   = "ssh"   // has stdin, stdout and stderr with it
)

// reply is the answer.
type reply struct {
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
	// Remark is for people, on the helper's stderr.
	Remark string `json:"remark,omitempty"`
	Status int    `json:"status"`
}

// SSH is a command to be run on a host, as git asks for it.
type SSH struct {
	User    string `json:"user,omitempty"`
	Host    string `json:"host"`
	Port    string `json:"port,omitempty"`
	Command string `json:"command"`
}

// maxMessage is the most bytes of a message.
const maxMessage = 64 << 10

// send writes a message, with descriptors.
func send(conn *net.UnixConn, message any, files ...*os.File) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(text) > maxMessage {
		return errors.New("the message is too long")
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, file := range files {
			fds[i] = int(file.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(text, rights, nil)
	return err
}

// receive reads a message and its descriptors, which are the caller's to close.
func receive(conn *net.UnixConn, message any) ([]*os.File, error) {
	text, rights := make([]byte, maxMessage+1), make([]byte, unix.CmsgSpace(3*4))
	n, rn, flags, _, err := conn.ReadMsgUnix(text, rights)
	if err != nil {
		return nil, err
	}
	files, err := filesOf(rights[:rn])
	switch {
	case err != nil:
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || n > maxMessage:
		err = errors.New("the message is too long")
	default:
		err = json.Unmarshal(text[:n], message)
	}
	if err != nil {
		closeAll(files)
		return nil, fmt.Errorf("read a message: %w", err)
	}
	return files, nil
}

func filesOf(rights []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	for _, message := range messages {
		fds, err := unix.ParseUnixRights(&message)
		if err != nil {
			closeAll(files)
			return nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			if len(files) == 0 {
				// Its stdin, which git has made for it alone: a read can then be
				// ended by closing. The others may be shared with anybody.
				_ = unix.SetNonblock(fd, true)
			}
			files = append(files, os.NewFile(uintptr(fd), "handed over"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		_ = file.Close()
	}
}
