package config

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/secretfile"
)

// podUser is the uid of the images, and the fsGroup of the charts.
const podUser = 10001

// secretVolume lays out what the kubelet mounts: the files in a directory of
// their own, "..data" pointing to it, and a link a file.
func secretVolume(t *testing.T, mode os.FileMode, uid, gid int, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // made for us alone
		t.Fatal(err)
	}
	at := filepath.Join(dir, "..2026_01_02_03_04_05.678901234")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Base(at), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		path := filepath.Join(at, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, uid, gid); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// volumeEnv has the test binary be what runs in the pod.
const volumeEnv = "TENDRIL_TEST_SECRET_VOLUME"

// What a Secret's volume gives to a pod with an fsGroup is read by the image's
// user, with everything that an agent reads from there.
func TestSecretVolume(t *testing.T) {
	if dir := os.Getenv(volumeEnv); dir != "" {
		readVolume(t, dir)
		return
	}
	t.Parallel()
	owner, group, user, root := 0, podUser, podUser, os.Geteuid() == 0
	if !root { // an ordinary user can lay out its own only, and that is a case of its own
		owner, group, user = os.Getuid(), os.Getgid(), os.Getuid()
	}
	for _, tc := range []struct {
		about      string
		mode       os.FileMode
		owner      int
		unreadable string // part of what is said
	}{
		{"defaultMode 0400 or 0440 with an fsGroup", 0o440, owner, ""},
		{"the image's user's own", 0o400, user, ""},
		{"writable by the pod, as projected tokens are", 0o640, owner, ""},
		{"defaultMode 0644", 0o644, owner, "give the Secret's volume defaultMode: 0440, and the pod an fsGroup"},
	} {
		dir := secretVolume(t, tc.mode, tc.owner, group, map[string]string{"token": testToken, "url": testURL, "aws": "AWS_REGION=eu-central-1\n"})
		// By its link, for the directories above the binary are not the pod's to search.
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestSecretVolume$", "-test.v")
		cmd.Env = append(os.Environ(), volumeEnv+"="+dir)
		if root {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: podUser, Gid: podUser}}
		}
		out, err := cmd.CombinedOutput()
		if tc.unreadable == "" && err != nil {
			t.Errorf("%s (%04o): the pod cannot read it:\n%s", tc.about, tc.mode, out)
		}
		if tc.unreadable != "" && (err == nil || strings.Count(string(out), tc.unreadable) < 3) {
			t.Errorf("%s (%04o): the pod reads it, want each file refused with %q:\n%s", tc.about, tc.mode, tc.unreadable, out)
		}
		if strings.Contains(string(out), "hunter2") || strings.Contains(string(out), testToken) {
			t.Errorf("%s (%04o): a secret was printed:\n%s", tc.about, tc.mode, out)
		}
	}
}

func readVolume(t *testing.T, dir string) {
	in := func(name string) string { return filepath.Join(dir, name) }
	got, err := Load("", []string{"HOME=/h", "TENDRIL_NAME=a", "TENDRIL_QUEUE_URL_FILE=" + in("url"), "TENDRIL_QUEUE_TOKEN_FILE=" + in("token"),
		"TENDRIL_CREDENTIALS=a/**:env_file=" + in("aws"), "TENDRIL_IDENTITY_FILE=" + in("token")})
	if err != nil {
		t.Fatal(err)
	}
	if got.Queue.URL != testURL || got.Queue.Token.Reveal() != testToken {
		t.Error("Load() has another URL or token than the files")
	}
	if _, err := secretfile.Read(got.IdentityFile); err != nil {
		t.Error(err)
	}
}
