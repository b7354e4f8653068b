package githelper

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// The roles that the test binary plays as a process of its own.
const (
	helperArg = "git-helper"
	serverArg = "server"
	senderArg = "sender"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case helperArg:
			syscall.Exit(Main(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
		case serverArg:
			syscall.Exit(serveAsProcess())
		case senderArg:
			syscall.Exit(sendAsIs(os.Args[2]))
		default:
			if !strings.HasPrefix(os.Args[1], "-test.") {
				syscall.Exit(2) // and not all tests once more
			}
		}
	}
	goleak.VerifyTestMain(m)
}

// lender lends what it has to everybody and notes who asked for what.
type lender struct {
	mu    sync.Mutex
	asked []string
	run   func(ctx context.Context, stdin io.ReadCloser, stdout io.Writer) int
}

func (l *lender) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, fmt.Sprintf(format, args...))
}

func (l *lender) Password(url string) (username, password, remark string) {
	l.note("get %s", url)
	if strings.Contains(url, "other") {
		return "", "", "not for that one"
	}
	return "bob", "hunter2", ""
}

func (l *lender) Refused(url string) string {
	l.note("erase %s", url)
	return "it was refused"
}

func (l *lender) SSH(ctx context.Context, c SSH, stdin io.ReadCloser, stdout, stderr io.Writer) (int, string) {
	l.note("ssh %s@%s:%s %s", c.User, c.Host, c.Port, c.Command)
	if l.run == nil {
		return 0, "not for that one"
	}
	_, _ = io.WriteString(stderr, "said aside\n")
	return l.run(ctx, stdin, stdout), ""
}

// heard returns what was asked since the last call.
func (l *lender) heard() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.asked = nil }()
	return l.asked
}

func serve(t *testing.T, l Lender) *Server {
	t.Helper()
	s, err := Serve(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func helper(t *testing.T, stdin string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{helperArg}, args...)...)
	var out, aside strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &aside
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), aside.String(), cmd.ProcessState.ExitCode()
}

func TestCredential(t *testing.T) {
	t.Parallel()
	l := &lender{}
	s := serve(t, l)
	for _, c := range []struct{ action, stdin, stdout, stderr string }{
		{"get", "protocol=https\nhost=h:8443\npath=acme/app.git\n\n", "username=bob\npassword=hunter2\n", ""},
		{"get", "protocol=https\nhost=h\npath=other\nusername=x\n\n", "", "tendril: not for that one\n"},
		{"erase", "protocol=https\nhost=h\npath=acme/app\npassword=hunter2\n\n", "", "tendril: it was refused\n"},
		{"store", "protocol=https\nhost=h\npath=acme/app\n\n", "", ""},
	} {
		stdout, stderr, status := helper(t, c.stdin, asCredential, s.name, c.action)
		if stdout != c.stdout || stderr != c.stderr || status != 0 {
			t.Errorf("git-helper credential %s = %q, %q, %d, want %q, %q, 0", c.action, stdout, stderr, status, c.stdout, c.stderr)
		}
	}
	if want := []string{"get https://h:8443/acme/app.git", "get https://h/other", "erase https://h/acme/app"}; !slices.Equal(l.heard(), want) {
		t.Errorf("asked otherwise than %q", want)
	}
}

func TestSSHArguments(t *testing.T) {
	t.Parallel()
	l := &lender{}
	s := serve(t, l)
	for _, c := range []struct {
		args   []string
		asked  string
		stderr string
	}{
		{[]string{"git@h", "git-upload-pack 'a'"}, "ssh git@h: git-upload-pack 'a'", "not for that one"},
		{[]string{"-o", "SendEnv=GIT_PROTOCOL", "-4", "-p", "2222", "h", "x"}, "ssh @h:2222 x", "not for that one"},
		{[]string{"-i", "/tmp/key", "git@h", "x"}, "", "sshkey"},
		{[]string{"-o", "ProxyCommand=touch x", "git@h", "x"}, "", "-o is not known"},
		{[]string{"git@h"}, "", "something else"},
		{[]string{"-p"}, "", "no value"},
	} {
		_, stderr, status := helper(t, "", append([]string{asSSH, s.name}, c.args...)...)
		if got := strings.Join(l.heard(), ""); got != c.asked || !strings.Contains(stderr, c.stderr) || status == 0 {
			t.Errorf("git-helper ssh %q asked %q, said %q, status %d, want %q, %q and a failure", c.args, got, stderr, status, c.asked, c.stderr)
		}
	}
	for _, args := range [][]string{nil, {asSSH}, {"other", s.name}} {
		if _, stderr, status := helper(t, "", args...); status != 1 || !strings.Contains(stderr, "not by hand") {
			t.Errorf("git-helper %q = %q, %d, want a failure that says who starts it", args, stderr, status)
		}
	}
}

// What git writes and reads goes through the helper's own descriptors.
func TestSSHPassesDescriptors(t *testing.T) {
	t.Parallel()
	l := &lender{run: func(_ context.Context, stdin io.ReadCloser, stdout io.Writer) int {
		text, err := io.ReadAll(stdin)
		_, _ = fmt.Fprintf(stdout, "got %s, %v", text, err)
		return 42
	}}
	s := serve(t, l)
	stdout, stderr, status := helper(t, "packs", asSSH, s.name, "git@h", "x")
	if stdout != "got packs, <nil>" || stderr != "said aside\n" || status != 42 {
		t.Errorf("git-helper ssh = %q, %q, %d, want what the command wrote and 42", stdout, stderr, status)
	}
}

// A helper that git ends takes its command along, and so does the end of init.
func TestSSHEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*exec.Cmd, *Server){
		"helper": func(cmd *exec.Cmd, _ *Server) { _ = cmd.Process.Kill() },
		"server": func(_ *exec.Cmd, s *Server) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began, ended := make(chan struct{}), make(chan struct{})
			s := serve(t, &lender{run: func(ctx context.Context, _ io.ReadCloser, _ io.Writer) int {
				close(began)
				<-ctx.Done()
				close(ended)
				return 1
			}})
			cmd := exec.CommandContext(t.Context(), os.Args[0], helperArg, asSSH, s.name, "git@h", "x")
			stdin, err := cmd.StdinPipe() // which stays open
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = stdin.Close() }()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-began
			end(cmd, s)
			<-ended
			if cmd.Wait() == nil {
				t.Error("the helper ended well, want a failure")
			}
		})
	}
}

// serveAsProcess serves until its stdin ends, and says under which name.
func serveAsProcess() int {
	s, err := Serve(context.Background(), &lender{})
	if err != nil {
		return 1
	}
	fmt.Println(s.name)
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Close()
	return 0
}

// A process that the server has not started gets nothing, though it has the same
// uid and knows the name: its parent and its brother are tried.
func TestStrangersGetNothing(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], serverArg)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var name string
	if _, err := fmt.Fscan(stdout, &name); err != nil {
		t.Fatal(err)
	}
	answer, err := ask(name, request{Verb: verbGet, URL: "https://h/acme/app"}, io.Discard)
	if err == nil || answer != (reply{}) {
		t.Errorf("the server's parent got %+v, %v, want nothing", answer, err)
	}
	out, said, _ := helper(t, "protocol=https\nhost=h\npath=acme/app\n\n", asCredential, name, "get")
	if out != "" || !strings.Contains(said, "the run that git belongs to") {
		t.Errorf("the server's brother got %q, %q, want nothing", out, said)
	}
	_ = stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// sendAsIs sends what is on stdin and says how many bytes it gets.
func sendAsIs(name string) int {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 1
	}
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: name, Net: "unixpacket"})
	if err != nil {
		return 1
	}
	if _, err := conn.Write(text); err != nil {
		return 1
	}
	n, _ := conn.Read(make([]byte, 1000))
	fmt.Print(n)
	return 0
}

// What is no request is not answered, and does no harm to the next.
func TestRubbishIsNotAnswered(t *testing.T) {
	t.Parallel()
	s := serve(t, &lender{})
	for _, text := range []string{"{", `{"verb":"other"}`, `{"verb":"ssh","ssh":{"host":"h"}}`, strings.Repeat("x", maxMessage+1)} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], senderArg, s.name)
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.Output(); err != nil || string(out) != "0" {
			t.Errorf("%.20q got %s bytes, %v, want none", text, out, err)
		}
	}
	if out, _, _ := helper(t, "protocol=https\nhost=h\npath=a\n\n", asCredential, s.name, "get"); out == "" {
		t.Error("the next helper got nothing")
	}
}

// git obeys neither the user's configuration nor that of a template that is laid
// out like a repository, and has its own kept out of what we give it.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	s := serve(t, &lender{})
	home, work := t.TempDir(), t.TempDir()
	template, plain := filepath.Join(work, "template"), filepath.Join(work, "plain")
	mark := filepath.Join(home, "ran")
	hostile := fmt.Sprintf("[core]\n\tbare = true\n\tsshCommand = touch %[1]s\n\tfsmonitor = touch %[1]s\n[credential]\n\thelper = !touch %[1]s\n[url \"ext::touch %[1]s\"]\n\tinsteadOf = https://\n", mark)
	for _, dir := range []string{
		filepath.Join(template, "objects"), filepath.Join(template, "refs"), filepath.Join(work, ".git", "objects"), filepath.Join(work, ".git", "refs"), plain,
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{
		filepath.Join(home, ".gitconfig"): hostile,
		filepath.Join(template, "config"): hostile, filepath.Join(template, "HEAD"): "ref: refs/heads/main\n",
		filepath.Join(work, ".git", "config"): hostile, filepath.Join(work, ".git", "HEAD"): "ref: refs/heads/main\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := s.Environment([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "GIT_SSH_COMMAND=touch " + mark, "GIT_ASKPASS=touch", "SSH_AUTH_SOCK=/x"},
		Git{Command: []string{"env", "QUOTED=it's", os.Args[0], helperArg}, OverHTTPS: []string{"h"}, Above: work})
	for _, not := range []string{"GIT_SSH_COMMAND=touch", "GIT_ASKPASS=", "SSH_AUTH_SOCK="} {
		if slices.ContainsFunc(env, func(entry string) bool { return strings.HasPrefix(entry, not) }) {
			t.Errorf("Environment() = %q, with %q", env, not)
		}
	}
	in := template
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir, cmd.Env = in, env
		out, _ := cmd.CombinedOutput() // most of them fail, as there is no such host
		return string(out)
	}
	for _, in = range []string{template, plain} {
		for _, url := range []string{"https://127.0.0.1:1/a", "ssh://git@127.0.0.1:1/a", "ext::touch " + mark, "file:///etc", "git://127.0.0.1/a", "http://127.0.0.1:1/a"} {
			out := git("ls-remote", "--", url)
			if _, err := os.Stat(mark); err == nil {
				t.Fatalf("git ls-remote %s ran a program of the template's or the user's: %s", url, out)
			}
		}
		if got := git("config", "--get-all", "core.sshCommand"); got != "" {
			t.Errorf("git in %s obeys a configuration that is not ours: core.sshCommand = %q", in, got)
		}
	}
	for url, want := range map[string]string{
		"git@h:acme/app.git": "https://h/acme/app.git\n", "ssh://git@h/acme/app": "https://h/acme/app\n",
		"git@other:acme/app": "git@other:acme/app\n", "ssh://git@h:22/acme/app": "ssh://git@h:22/acme/app\n",
	} {
		if got := git("ls-remote", "--get-url", url); got != want {
			t.Errorf("git ls-remote --get-url %s = %q, want %q", url, got, want)
		}
	}
	for key, want := range map[string]string{
		"credential.useHttpPath": "true\n", "core.hooksPath": os.DevNull + "\n", "url.https://h/.insteadOf": "git@h:\nssh://git@h/\n",
		"credential.helper": "\n!" + shell([]string{"env", "QUOTED=it's", os.Args[0], helperArg, asCredential, s.name}) + "\n",
	} {
		if got := git("config", "--get-all", key); got != want {
			t.Errorf("git config %s = %q, want %q", key, got, want)
		}
	}
}
