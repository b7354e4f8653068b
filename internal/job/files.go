package job

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxCredentialFile is how large a file of credentials may be that is looked
// through, in bytes.
const maxCredentialFile = 1 << 20

// namesFile reports whether a variable names files of credentials that clouds'
// programs read.
func namesFile(name string) bool {
	switch name {
	case "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
		"GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CREDENTIALS", "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE",
		"AZURE_FEDERATED_TOKEN_FILE", "ARM_OIDC_TOKEN_FILE_PATH", "ARM_CLIENT_SECRET_FILE_PATH",
		"KUBECONFIG", "KUBE_CONFIG_PATH", "KUBE_CONFIG_PATHS", "OS_CLIENT_CONFIG_FILE":
		return true
	}
	return false
}

// FileSecrets lists what must appear in no line of a run of the files that its
// environment names, as far as this process may read them: else the engine may
// not either.
func FileSecrets(environ []string) (all []string) {
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !namesFile(name) {
			continue
		}
		for _, path := range filepath.SplitList(value) {
			if text, err := readCredentials(path); err == nil {
				all = append(all, secretsIn(text)...)
			}
		}
	}
	return all
}

// readCredentials waits for nobody, as reading a pipe would.
func readCredentials(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", errors.New("no absolute path")
	}
	file, err := os.OpenFile(filepath.Clean(path), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // only read
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxCredentialFile {
		return "", errors.New("no file of credentials")
	}
	text, err := io.ReadAll(io.LimitReader(file, maxCredentialFile))
	return string(text), err
}

// secretsIn are what in a file goes by a name of something secret, be it JSON,
// YAML or what AWS has; of one in which nothing does, the longer words. So the
// address of a cluster stays to be read, which is in every plan.
func secretsIn(text string) (found []string) {
	add := func(name, value string) {
		if value = strings.Trim(strings.TrimSpace(value), `"',`); len(value) >= minCredential && isCredential(strings.ReplaceAll(name, "-", "_")) {
			found = append(found, value)
		}
	}
	eachLeaf([]byte(text), add)
	for line := range strings.Lines(text) {
		if at := strings.IndexAny(line, "=:"); at > 0 {
			add(strings.Trim(strings.TrimSpace(line[:at]), `"'- `), line[at+1:])
		}
	}
	if found == nil {
		return words(text)
	}
	return found
}
