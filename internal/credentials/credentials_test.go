package credentials_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/credentials"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := write(t, filepath.Join(dir, "env"), "# of production\nAWS_SECRET_ACCESS_KEY=prod-secret=1\n\nexport AWS_REGION=\"eu-central-1\"\n")
	file := write(t, filepath.Join(dir, "file"), "prod-file")
	c := config.Config{CredentialsDefault: true, Credentials: config.Credentials{
		{Workspace: "acme/prod", EnvFile: env, Files: map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": file}},
		{Workspace: "acme/*", AWSRoleARN: "arn:aws:iam::123456789012:role/dev", WebIdentityTokenFile: file, ServiceAccountTokenFile: file},
		{Workspace: "broken", EnvFile: write(t, filepath.Join(dir, "broken"), "hunter2-hunter2\n")},
		{Workspace: "path", EnvFile: write(t, filepath.Join(dir, "path"), "LD_PRELOAD=hunter2-hunter2\n")},
		{Workspace: "gone", EnvFile: filepath.Join(dir, "gone")},
	}}
	r := credentials.New(c, []string{"AWS_SECRET_ACCESS_KEY=of-the-agent", "UNRELATED=x"})
	for workspace, want := range map[string]job.Credentials{
		"acme/prod": {Env: map[string]string{"AWS_SECRET_ACCESS_KEY": "prod-secret=1", "AWS_REGION": "eu-central-1"}, Files: map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": "prod-file"}},
		"acme/dev": {Env: map[string]string{"AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/dev", "KUBE_TOKEN": "prod-file"},
			Files: map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "prod-file"}},
		"other": {Env: map[string]string{"AWS_SECRET_ACCESS_KEY": "of-the-agent"}},
	} {
		if got, err := r.For(workspace, uuid.Nil); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("For(%s) = %+v, %v, want %+v", workspace, got, err, want)
		}
	}
	for workspace, want := range map[string]string{"broken": "line 1: is not NAME=VALUE", "path": "line 1: its name may not be set", "gone": "cannot be read"} {
		_, err := r.For(workspace, uuid.Nil)
		if f, ok := errors.AsType[*provision.Failure](err); !ok || f.Code != provision.CodeCredentials || !strings.Contains(f.Message, want) || strings.Contains(f.Message, "hunter2") {
			t.Errorf("For(%s) = %v, want a %s with %q that shows no value", workspace, err, provision.CodeCredentials, want)
		}
	}
	// Read for each run: what has been replaced serves the next, and what has
	// been opened to others none.
	write(t, env, "AWS_SECRET_ACCESS_KEY=another")
	if got, err := r.For("acme/prod", uuid.Nil); err != nil || got.Env["AWS_SECRET_ACCESS_KEY"] != "another" {
		t.Errorf("For() after a change = %v, %v, want what the file holds now", got.Env, err)
	}
	if err := os.Chmod(env, 0o604); err != nil {
		t.Fatal(err)
	}
	if _, err := r.For("acme/prod", uuid.Nil); err == nil || !strings.Contains(err.Error(), "others may read it") {
		t.Errorf("For() of a file that all may read = %v, want a refusal", err)
	}

	c.CredentialsDefault = false
	if got, err := credentials.New(c, []string{"AWS_SECRET_ACCESS_KEY=of-the-agent"}).For("other", uuid.Nil); err != nil || got.Env != nil || !strings.Contains(got.Note, "other") {
		t.Errorf("For(other) = %+v, %v, want none and a note, for that is the default", got, err)
	}
	if got, err := credentials.New(config.Config{}, nil).For("other", uuid.Nil); err != nil || !reflect.DeepEqual(got, job.Credentials{}) {
		t.Errorf("For(other) = %+v, %v, want nothing where nothing is configured", got, err)
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	got := job.Credentials{
		Env: map[string]string{"AWS_SECRET_ACCESS_KEY": "secret-of-the-environment", "AWS_REGION": "eu-central-1", "PIN": "1234567"},
		Files: map[string]string{
			"GOOGLE_APPLICATION_CREDENTIALS": `{"type": "service", "private_key": "-----BEGIN-----\nline-of-a-private-key\n-----END-----"}`,
			"KUBE_CONFIG_PATH":               "users:\n- user: {token: \"token-of-a-kubeconfig\"}\nkind: Config\n",
			"AWS_SHARED_CREDENTIALS_FILE":    "[default]\naws_secret_access_key=secret-of-the-file\n",
		},
	}.Secrets()
	for _, want := range []string{"secret-of-the-environment", "-----BEGIN-----\nline-of-a-private-key\n-----END-----", "secret-of-the-file"} {
		if !slices.Contains(got, want) {
			t.Errorf("Secrets() = %q, want %q in it", got, want)
		}
	}
	if !slices.ContainsFunc(got, func(s string) bool {
		return strings.HasPrefix(s, "token-of-a-kubeconfig") && len(s) <= len("token-of-a-kubeconfig")
	}) {
		t.Errorf("Secrets() = %q, want the kubeconfig's token in it", got)
	}
	for _, unwanted := range []string{"eu-central-1", "1234567", "kind:", "Config", "service"} {
		if slices.Contains(got, unwanted) {
			t.Errorf("Secrets() has %q, which would blot out half a log", unwanted)
		}
	}
}

// A pinned id keeps credentials from a workspace that was given the name.
func TestPinnedWorkspace(t *testing.T) {
	t.Parallel()
	env := write(t, filepath.Join(t.TempDir(), "env"), "AWS_SECRET_ACCESS_KEY=prod\n")
	id := uuid.New()
	r := credentials.New(config.Config{Credentials: config.Credentials{{Workspace: "acme/* id=" + id.String(), EnvFile: env}}}, nil)
	if got, err := r.For("acme/prod", id); err != nil || got.Env["AWS_SECRET_ACCESS_KEY"] != "prod" {
		t.Errorf("For(the pinned workspace) = %+v, %v, want its credentials", got, err)
	}
	if got, err := r.For("acme/prod", uuid.New()); err != nil || len(got.Env) > 0 {
		t.Errorf("For(another workspace of that name) = %+v, %v, want none", got, err)
	}
}
