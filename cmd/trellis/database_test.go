package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A URL in a file, as Kubernetes mounts one, counts like one that is given
// straight; nothing that fails shows it.
func TestDatabaseURLFile(t *testing.T) {
	t.Parallel()
	const url = "postgres://me:s3cret@127.0.0.1:1/none?connect_timeout=1"
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "..v1"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"url": 0o440, "open": 0o444} {
		if err := os.WriteFile(filepath.Join(dir, "..v1", name), []byte(url+"\n"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("..data/"+name, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("..v1", filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	file, lines, empty, password := filepath.Join(dir, "url"), filepath.Join(dir, "lines"), filepath.Join(dir, "empty"), filepath.Join(dir, "password")
	for name, text := range map[string]string{lines: url + "\nmore", empty: "\n", password: "s3cret\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const away = "could not reach the database"
	for _, tt := range []struct {
		env, args string
		code      int
		want      string
	}{
		{"TRELLIS_DATABASE_URL_FILE=" + file, "serve --listen 127.0.0.1:0", exitUnreachable, away},
		{"", "serve --listen 127.0.0.1:0 --database-url-file " + file, exitUnreachable, away},
		{"", "admin init --database-url-file " + file, exitUnreachable, "127.0.0.1"},
		{"", "migrate --print --database-url-file " + file, exitUnreachable, "could not ask the database"},
		{"TRELLIS_DATABASE_URL_FILE=" + file, "serve --listen 127.0.0.1:0 --database-url postgres://other@127.0.0.1:2/x", exitUnreachable, "127.0.0.1:2"},
		{"", "serve --database-url x --database-url-file " + file, exitUsage, "--database-url and --database-url-file: give one of them"},
		{"", "serve --database-url-file " + filepath.Join(dir, "open"), exitFailed, "defaultMode: 0440"},
		{"", "serve --database-url-file " + lines, exitFailed, "must hold one line"},
		{"", "migrate --database-url-file " + empty, exitFailed, "must hold one line"},
		{"", "serve --database-url-file " + password, exitFailed, "must hold one line"},
		{"TRELLIS_DATABASE_URL_FILE=" + dir, "link --public-url https://a.example", exitFailed, "TRELLIS_DATABASE_URL_FILE: the file " + dir + " is not a regular file"},
		{"TRELLIS_DATABASE_URL_FILE=" + file, "status", exitUsage, "TRELLIS_DATABASE_URL_FILE is for up, serve, migrate, gc, link and admin"},
		{"", "status --database-url-file " + file, exitUsage, "this asks a server"},
	} {
		var out, err bytes.Buffer
		name, value, _ := strings.Cut(tt.env, "=")
		getenv := func(asked string) string {
			switch asked {
			case "XDG_CONFIG_HOME", "HOME":
				return dir
			case name:
				return value
			}
			return ""
		}
		code := newApp("trellis", getenv, strings.NewReader(""), terminal{Writer: &out}, terminal{Writer: &err}).run(strings.Fields(tt.args))
		result{code, out.String(), err.String()}.want(t, tt.env+" "+tt.args, tt.code, tt.want)
		if strings.Contains(out.String()+err.String(), "s3cret") {
			t.Errorf("%s %s shows the password:\n%s", tt.env, tt.args, err.String())
		}
	}
}
