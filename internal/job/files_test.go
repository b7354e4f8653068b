package job_test

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
)

func TestFileSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var environ, hidden []string
	file := func(variable, text string, secrets ...string) {
		path := filepath.Join(dir, variable)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		environ, hidden = append(environ, variable+"="+path), append(hidden, secrets...)
	}
	file("AWS_SHARED_CREDENTIALS_FILE", "[default]\naws_access_key_id = AKIAEXAMPLEEXAMPLE00\naws_secret_access_key=secret/of+aws=here\nregion = eu-central-1-or-so\n",
		"AKIAEXAMPLEEXAMPLE00", "secret/of+aws=here")
	file("GOOGLE_APPLICATION_CREDENTIALS", `{"type": "service_account", "private_key": "-----BEGIN-----\nabcdef\n", "client_email": "someone@project.example", "token_uri": "https://oauth2.example/token"}`,
		"-----BEGIN-----\nabcdef")
	file("KUBECONFIG", "clusters:\n- cluster:\n    server: https://a-cluster.example:6443\nusers:\n- name: someone-with-a-name\n  user:\n    client-key-data: a2V5LW9mLWtleXM=\n    token: \"token-of-someone\"\n",
		"a2V5LW9mLWtleXM=", "token-of-someone")
	file("AWS_WEB_IDENTITY_TOKEN_FILE", "a-token-by-itself-in-a-file\n", "a-token-by-itself-in-a-file")
	pipe := filepath.Join(dir, "pipe") // nobody waits for it
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	got := job.FileSecrets(append(environ, "KUBE_CONFIG_PATH="+pipe, "GOOGLE_CREDENTIALS={}", "AWS_CONFIG_FILE=/none", "SOME_FILE="+filepath.Join(dir, "KUBECONFIG")))
	for _, want := range hidden {
		if !slices.Contains(got, want) {
			t.Errorf("FileSecrets() = %q, want %q in it", got, want)
		}
	}
	for _, text := range got {
		if !slices.Contains(hidden, text) {
			t.Errorf("FileSecrets() has %q, which is no secret", text)
		}
	}
}
