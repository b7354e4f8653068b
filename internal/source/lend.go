package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/tendril-run/tendril/internal/githelper"
)

// Engine is what starts git.
type Engine struct {
	Environ []string
	// Helper is the argv that reaches githelper.Main.
	Helper []string
	// Temp is where the engine may read a file of certificates.
	Temp string
	// Above is the directory above the template's files.
	Above string
}

// Lend has a git that others start, an engine's, use the credentials of this
// Source until done is called: for repositories that the policy allows and those
// that a host's own table names. It returns the environment for that engine. No
// code of a template may run meanwhile.
//
// Which modules a template may name at all is for others to say: they come from
// registries and archives as well, of which git knows nothing. Public ones are
// fetched as anybody could fetch them.
func (s *Source) Lend(ctx context.Context, to Engine) (env []string, done func(), err error) {
	git := githelper.Git{Command: to.Helper, AllowFile: s.allow.allowFile, Above: to.Above}
	for host, c := range s.hosts {
		if c.tokenOnly() && !strings.ContainsAny(host, ":[") {
			git.OverHTTPS = append(git.OverHTTPS, host)
		}
	}
	if git.CAFile, err = s.bundle(to.Temp); err != nil {
		return nil, nil, err
	}
	server, err := githelper.Serve(ctx, lender{s})
	if err != nil {
		return nil, nil, err
	}
	return server.Environment(to.Environ, git), server.Close, nil
}

// lender is what a helper of git may ask.
type lender struct{ *Source }

// Password implements githelper.Lender.
func (l lender) Password(url string) (username, password, remark string) {
	a, err := parseAddress(url)
	if err != nil || a.Scheme != "https" {
		return "", "", fmt.Sprintf("%s asks for credentials and gets none: its address is not one that they could be for", redact(url))
	}
	c := l.hosts.of(a)
	switch {
	case !l.lends(a):
		return "", "", l.outOfScope(a)
	case c.Token != "":
		return c.Username, c.Token, ""
	case c.TokenProblem != "":
		return "", "", fmt.Sprintf("%s asks for credentials, which are missing: %s", a, c.TokenProblem)
	default:
		return "", "", fmt.Sprintf("%s asks for credentials: it is private or does not exist; if it is private, set token_file under %s in the agent's configuration", a, table(c.Host))
	}
}

func (l lender) outOfScope(a address) string {
	return fmt.Sprintf("%s asks for credentials and gets none, for neither [policy] repos nor repos under %s in the agent's configuration names it", a, table(a.hostPort()))
}

// Refused implements githelper.Lender.
func (l lender) Refused(url string) (remark string) {
	a, err := parseAddress(url)
	if err != nil {
		return ""
	}
	if _, token := l.basic(a); token == "" {
		return ""
	}
	return fmt.Sprintf("%s refused the credentials of %s: the token is wrong, expired or revoked, or may not read this repository's contents", a, table(a.hostPort()))
}

// SSH implements githelper.Lender: it runs git-upload-pack, and nothing else.
func (l lender) SSH(ctx context.Context, command githelper.SSH, stdin io.ReadCloser, stdout, stderr io.Writer) (status int, remark string) {
	a, err := sshAddress(command)
	if err != nil {
		return 0, "this cannot be asked for over SSH: " + err.Error()
	}
	if !l.lends(a) {
		return 0, l.outOfScope(a)
	}
	limited, cancel := context.WithTimeoutCause(ctx, l.timeout, errTimeout)
	defer cancel()
	status, err = l.uploadPack(limited, a, stdin, stdout, stderr)
	if err == nil {
		return status, ""
	}
	// In the words of a checkout, which speaks of the template's source.
	return 0, strings.TrimPrefix(l.explain(ctx, limited, a, err).Error(), "template_source.repo: ")
}

// sshAddress reads what git would have a shell do on the host.
func sshAddress(command githelper.SSH) (address, error) {
	path, ok := strings.CutPrefix(command.Command, "git-upload-pack '")
	path, closed := strings.CutSuffix(path, "'")
	if !ok || !closed {
		return address{}, errors.New("modules are fetched (git-upload-pack), nothing else is run on a host")
	}
	host := command.Host
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	user := command.User
	if user == "" {
		user = "git"
	}
	path = strings.ReplaceAll(path, " ", "%20")
	if !strings.HasPrefix(path, "/") {
		if command.Port == "" || command.Port == "22" {
			return parseAddress(user + "@" + host + ":" + path)
		}
		path = "/" + path // ~user/path behind a port, which git writes without
	}
	if command.Port != "" {
		host += ":" + command.Port
	}
	return parseAddress("ssh://" + user + "@" + host + path)
}

// uploadPack connects a helper's descriptors with the host's git-upload-pack.
func (s *Source) uploadPack(ctx context.Context, a address, stdin io.ReadCloser, stdout, stderr io.Writer) (status int, err error) {
	client, unhook, err := s.dialSSH(ctx, a)
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = client.Close()
		_ = client.Wait()
		unhook()
	}()
	run, err := client.NewSession()
	if err != nil {
		return 0, fmt.Errorf("ssh: %w", err)
	}
	to, err := run.StdinPipe()
	if err != nil {
		return 0, err
	}
	run.Stdout, run.Stderr = stdout, stderr
	if err := run.Start("git-upload-pack '" + strings.ReplaceAll(a.DialPath, "%20", " ") + "'"); err != nil {
		return 0, fmt.Errorf("ssh: start git-upload-pack: %w", err)
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(to, stdin)
		_ = to.Close()
	}()
	err = run.Wait()
	_ = stdin.Close()
	<-copied
	if exit, ok := errors.AsType[*ssh.ExitError](err); ok {
		return exit.ExitStatus(), nil
	}
	return 0, err
}
