package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// secretFiles are the files in which the configuration keeps secrets, by key.
func (d *doctor) secretFiles() map[string]string {
	files := map[string]string{}
	queue := d.Config.Queue
	for key, path := range map[string]string{"queue.token_file": queue.TokenFile, "queue.url_file": queue.URLFile, "queue.listen_url_file": queue.ListenURLFile} {
		if path != "" {
			files[key] = path
		}
	}
	if d.File != "" && d.secretsInside() {
		files["the configuration"] = d.File
	}
	for _, entry := range d.Config.Credentials {
		for key, path := range entry.SecretFiles() {
			files[fmt.Sprintf("credentials.%q.%s", entry.Workspace, key)] = path
		}
	}
	for host, at := range d.Config.Git.Hosts {
		for key, path := range map[string]string{"token_file": at.TokenFile, "ssh_key_file": at.SSHKeyFile, "app_key_file": at.AppKeyFile} {
			if path != "" {
				files[fmt.Sprintf("git.hosts.%q.%s", host, key)] = path
			}
		}
	}
	return files
}

// secretsInside reports whether a secret may stand in the configuration file
// itself: it cannot be told from here whether it does or the environment has it.
func (d *doctor) secretsInside() bool {
	content, err := os.ReadFile(d.File)
	return err == nil && slices.ContainsFunc(d.secretValues(), func(value string) bool {
		return value != "" && strings.Contains(string(content), value)
	})
}

// secrets says who else may read the files that hold secrets.
func (d *doctor) secrets(context.Context) verdict {
	files := d.secretFiles()
	var open, chmod []string
	for key, path := range files {
		info, err := os.Stat(path) // through links: Kubernetes mounts secrets as such
		if errors.Is(err, fs.ErrNotExist) || err != nil {
			return fail("correct the path, or let the agent's user read it", "%s: %s cannot be read: %v", key, path, errors.Unwrap(err))
		}
		if mode := info.Mode().Perm(); mode&0o007 != 0 {
			open = append(open, fmt.Sprintf("%s (%s, mode %04o)", key, path, mode))
			chmod = append(chmod, strconv.Quote(path))
		}
	}
	if len(open) > 0 {
		slices.Sort(open)
		slices.Sort(chmod)
		return fail("run: chmod o= "+strings.Join(chmod, " "), "everybody on this machine can read %s, templates included", strings.Join(open, ", "))
	}
	if len(files) == 0 {
		return ok("no file of the configuration holds a secret")
	}
	return ok("others cannot read %s", counted(len(files), "file that holds a secret", "files that hold secrets"))
}

// templates says what the code that templates bring can look at here.
func (d *doctor) templates(context.Context) verdict {
	given := ""
	if names := d.givenSecrets(); len(names) > 0 {
		given = "; they are given " + strings.Join(names, ", ")
	}
	switch {
	case d.isolates():
		return ok("the agent runs as root, so each run gets an unprivileged uid: a template can read neither the agent's files nor another run's%s", given)
	case d.uid == 0:
		return warn("set run.uids to auto", "templates run as root (run.uids is off) and can read, and change, everything on this machine")
	}
	sees := []string{"local states and the work of other runs"}
	for _, path := range append(slices.Collect(maps.Values(d.secretFiles())), filepath.Join(d.Config.DataDir, "identity")) {
		if readable(path) {
			sees = append(sees, path)
		}
	}
	slices.Sort(sees[1:])
	if pid := shownBy(d.Config.Queue.Token.Reveal()); pid != "" {
		sees = append(sees, "the token in the environment of process "+pid)
	}
	return warn("let only templates you trust alike share this agent, start it as root, or run a pod per provision",
		"templates run under the agent's own uid, %d, and can read what it can: %s%s", d.uid, strings.Join(sees, ", "), given)
}

// givenSecrets names variables that every template is given, on purpose, and
// that look as if they held a secret.
func (d *doctor) givenSecrets() (names []string) {
	for _, entry := range d.Config.ChildEnv(d.Environ) {
		name, _, _ := strings.Cut(entry, "=")
		if slices.ContainsFunc([]string{"SECRET", "TOKEN", "PASSWORD", "PRIVATE", "API_KEY"}, func(part string) bool { return strings.Contains(name, part) }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// shownBy returns a process whose environment shows the token to this uid: not
// an agent, which hides its own, but what started one.
func shownBy(token string) (pid string) {
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || token == "" {
		return ""
	}
	for _, path := range environments {
		if content, err := os.ReadFile(path); err == nil && bytes.Contains(content, []byte(token)) {
			return filepath.Base(filepath.Dir(path))
		}
	}
	return ""
}

func readable(path string) bool {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	return err == nil && file.Close() == nil
}

// metadataAddress is where the large clouds tell a machine who it is, its
// credentials included.
const metadataAddress = "169.254.169.254:80"

func (d *doctor) metadata(ctx context.Context) verdict {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", metadataAddress)
	if err != nil {
		return ok("there is no cloud metadata service that templates could ask for the machine's role")
	}
	_ = conn.Close()
	return ok("templates can ask the cloud's metadata service (%s) for this machine's role: give it no more than they need", metadataAddress)
}

// counted writes a number with its noun.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
