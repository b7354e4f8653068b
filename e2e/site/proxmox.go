package site

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/pvesim"
)

// Proxmox starts a simulated Proxmox cluster of three equal nodes, each with the image debian,
// whose time passes speed times as fast. It answers the cluster, the [[pools]] by which an
// agent reaches it, named lab, with 100 VMIDs from 200 and 100 addresses from 10.0.0.50, and
// the token in its file.
func Proxmox(t testing.TB, speed float64) (cluster *pvesim.Server, pools, token string) {
	t.Helper()
	cluster, token, err := pvesim.Lab(pvesim.Options{Speed: speed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca, err := cluster.CAFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	return cluster, fmt.Sprintf("[[pools]]\nname = \"lab\"\nkind = \"proxmox\"\nurl = %q\ntoken_file = %q\nca_file = %q\nvm_ids = \"200-299\"\naddresses = [\"10.0.0.50-10.0.0.149/24\"]\ngateway = \"10.0.0.1\"\n", cluster.URL(), file, ca), token
}

// ClassTemplate are the files of the example of a class, without its health check: simulated
// machines have addresses where nobody is.
func ClassTemplate(t testing.TB) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, name := range []string{"tendril.hcl", "variables.tf"} {
		text, err := os.ReadFile(filepath.Join(root(), "examples", "templates", "class", name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = strings.Replace(string(text), "health { tcp = 22 }\n", "", 1)
	}
	return files
}
