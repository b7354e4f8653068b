package githelper

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

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
