package githelper

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

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
