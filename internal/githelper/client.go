package githelper

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
)

// The first argument of the helper says how git calls it, the second is the
// socket.
const (
	asCredential = "credential"
	asSSH        = "ssh"
)

// Main is the helper: it does what git asks for by args, and returns the exit
// code.
func Main(args []string, stdin, stdout, stderr *os.File) int {
	if len(args) < 2 {
		_, _ = fmt.Fprintln(stderr, "tendril: git-helper is started by git, not by hand")
		return 1
	}
	how, socket, rest := args[0], args[1], args[2:]
	status, err := 1, errors.New("it is started by git, not by hand")
	switch how {
	case asCredential:
		status, err = credential(socket, rest, stdin, stdout, stderr)
	case asSSH:
		status, err = overSSH(socket, rest, stdin, stdout, stderr)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "tendril: git-helper: %v\n", err)
		return max(status, 1)
	}
	return status
}

// ask sends a request and prints the remark of the answer.
func ask(socket string, req request, stderr io.Writer, files ...*os.File) (reply, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return reply{}, fmt.Errorf("the run that git belongs to cannot be asked: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := send(conn, req, files...); err != nil {
		return reply{}, fmt.Errorf("ask the run that git belongs to: %w", err)
	}
	var answer reply
	if _, err := receive(conn, &answer); err != nil {
		return reply{}, fmt.Errorf("the run that git belongs to does not answer: %w", err)
	}
	if answer.Remark != "" {
		_, _ = fmt.Fprintln(stderr, "tendril: "+answer.Remark)
	}
	return answer, nil
}

// credential speaks git's protocol for credential helpers (gitcredentials(7)).
func credential(socket string, args []string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	if len(args) != 1 || args[0] != verbGet && args[0] != verbErase {
		return 0, nil // "store", and what git may come to say
	}
	asked := map[string]string{}
	lines := bufio.NewScanner(io.LimitReader(stdin, maxMessage))
	for lines.Scan() && lines.Text() != "" {
		name, value, _ := strings.Cut(lines.Text(), "=")
		asked[name] = value
	}
	if err := lines.Err(); err != nil {
		return 1, err
	}
	url := asked["protocol"] + "://" + asked["host"] + "/" + asked["path"]
	answer, err := ask(socket, request{Verb: args[0], URL: url}, stderr)
	if err != nil || answer.Password == "" {
		return 0, err
	}
	_, err = fmt.Fprintf(stdout, "username=%s\npassword=%s\n", answer.Username, answer.Password)
	return 0, err
}

// overSSH takes the arguments that git gives to ssh (GIT_SSH_VARIANT=ssh).
func overSSH(socket string, args []string, stdin, stdout, stderr *os.File) (int, error) {
	var command SSH
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch option := args[0]; {
		case option == "-4" || option == "-6":
			args = args[1:]
			continue
		case len(args) < 2:
			return 1, fmt.Errorf("the option %s has no value", option)
		case option == "-p":
			command.Port = args[1]
		case option == "-o" && strings.HasPrefix(args[1], "SendEnv="):
		case option == "-i":
			return 1, errors.New("a key in a module's source (sshkey=…) is not used; ssh_key_file under [git.hosts] in the agent's configuration names one for the host")
		default:
			return 1, fmt.Errorf("the option %s is not known", option)
		}
		args = args[2:]
	}
	if len(args) != 2 {
		return 1, errors.New("git asked for something else than to run one command on a host")
	}
	var ok bool
	if command.User, command.Host, ok = strings.Cut(args[0], "@"); !ok {
		command.User, command.Host = "", args[0]
	}
	command.Command = args[1]
	answer, err := ask(socket, request{Verb: verbSSH, SSH: command}, stderr, stdin, stdout, stderr)
	if answer.Remark != "" {
		return 1, err
	}
	return answer.Status, err
}

// Git is how the git of an engine is to behave.
type Git struct {
	// Command is the argv that reaches Main.
	Command []string
	// AllowFile admits repositories on this disk.
	AllowFile bool
	// OverHTTPS are hosts of which git@HOST:path is to be asked for as
	// https://HOST/path.
	OverHTTPS []string
	// CAFile is a bundle that replaces the system's; "" leaves that.
	CAFile string
	// Above is a directory in which, and above which, git looks for no
	// repository: an earlier run's template may have left one there, with a
	// configuration of its own.
	Above string
}

// Environment is environ for an engine whose git is to ask this server: its own
// configuration and what environ says of git and ssh are left out. Nothing of it
// is secret.
func (s *Server) Environment(environ []string, g Git) []string {
	env := slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		return strings.HasPrefix(entry, "GIT_") || strings.HasPrefix(entry, "SSH_")
	})
	helper := func(how string) string { return shell(append(slices.Clone(g.Command), how, s.name)) }
	protocols := "https:ssh"
	if g.AllowFile {
		protocols += ":file"
	}
	env = append(env,
		"GIT_TERMINAL_PROMPT=0",
		"GIT_ALLOW_PROTOCOL="+protocols,
		"GIT_SSH_COMMAND="+helper(asSSH), "GIT_SSH_VARIANT=ssh",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull,
	)
	if g.CAFile != "" {
		env = append(env, "GIT_SSL_CAINFO="+g.CAFile)
	}
	if g.Above != "" {
		env = append(env, "GIT_CEILING_DIRECTORIES="+g.Above)
	}
	settings := [][2]string{
		// A template that is laid out like a bare repository is none: its
		// configuration could name programs and proxies.
		{"safe.bareRepository", "explicit"},
		{"core.hooksPath", os.DevNull},
		{"core.fsmonitor", "false"},
		{"credential.helper", ""}, // forgets any that came before
		{"credential.helper", "!" + helper(asCredential)},
		{"credential.useHttpPath", "true"},
	}
	for _, host := range g.OverHTTPS {
		base := "url.https://" + host + "/.insteadOf"
		settings = append(settings, [2]string{base, "git@" + host + ":"}, [2]string{base, "ssh://git@" + host + "/"})
	}
	for i, setting := range settings {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, setting[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, setting[1]))
	}
	return append(env, fmt.Sprintf("GIT_CONFIG_COUNT=%d", len(settings)))
}

// shell quotes words for sh.
func shell(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
