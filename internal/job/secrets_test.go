package job

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestSecrets(t *testing.T) {
	t.Parallel()
	j := Job{SealedVars: map[string]json.RawMessage{"s": json.RawMessage(`{"a":["sealed-one",12345678],"b":true}`)}}
	j.Settings.Git.Hosts = []GitHost{{Host: "h", Key: "git-key"}, {Host: "i", Username: "u", Token: "git-token"}}
	j.Credentials.Env = map[string]string{"AWS_SESSION_TOKEN": "of-the-workspace"}
	j.Settings.State.Config = map[string]map[string]string{"http": {"address": "https://u:backend-pw@h", "password": "http-pw", "bucket": "shown"}}
	got := j.Secrets([]string{
		"PATH=/usr/bin", "HOME=/home/x", "AWS_REGION=eu-central-1", "AWS_PROFILE=prod", "KUBECONFIG=/etc/kube", "VAULT_ADDR=https://vault:8200",
		"AWS_ACCESS_KEY_ID=id-of-key", "AWS_SECRET_ACCESS_KEY=aws-secret", "HCLOUD_TOKEN=hcloud", "OS_PASSWORD=os-pw",
		"ARM_CLIENT_SECRET=azure", "ARM_CLIENT_ID=shown", "VSPHERE_USER=shown", "CLOUDFLARE_API_KEY=flare", "PM_PASS=proxmox",
		"AWS_WEB_IDENTITY_TOKEN_FILE=/var/run/token", "VAULT_TOKEN=/is/a/path", "AZURE_USE_TOKEN=true",
		`GOOGLE_CREDENTIALS={"type":"service_account","client_email":"shown@x","private_key_id":"shown","private_key":"-----BEGIN"}`,
		"GOOGLE_APPLICATION_CREDENTIALS=/etc/key.json", "HTTPS_PROXY=http://me:pr%40xy@proxy:3128", "no_proxy=localhost",
	})
	slices.Sort(got)
	want := []string{
		"-----BEGIN", "12345678", "aws-secret", "azure", "bWU6cHJAeHk=", "backend-pw", "dTpiYWNrZW5kLXB3", "dTpnaXQtdG9rZW4=", "flare", "git-key", "git-token", "hcloud", "http-pw", "id-of-key",
		"of-the-workspace", "os-pw", "pr@xy", "proxmox", "sealed-one",
	}
	if !slices.Equal(got, want) {
		t.Errorf("Secrets() = %q,\nwant %q", got, want)
	}
}
