package proxmox

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.config.Networks, l.config.Storages, l.config.ResourcePool = []string{"vmbr0", "vmbr1"}, []string{"disks"}, "lab"
	l.config.Snippets = []string{"local:snippets/a.yml", "local:snippets/b.yml"}
	d := l.driver()
	for raw, want := range map[string]string{
		`null`: "", ``: "", `{}`: "",
		`{"bridge":"vmbr1","vlan":4094,"full_clone":true,"start":false,"agent":true,"cpu":"x86-64-v2-AES","tags":["a","b-c"],"resource_pool":"lab/x","cicustom":"user=local:snippets/a.yml,vendor=local:snippets/b.yml","on_boot":true,"reboot":false,"storage":"disks","search_domain":"example.org"}`: "",
		`{"brigde":"vmbr0"}`:              `unknown setting "brigde"; did you mean "bridge"?`,
		`{"bridge":7}`:                    "bridge: write a text",
		`{"vlan":"7"}`:                    "vlan: write a whole number",
		`{"start":1}`:                     "start: write true or false",
		`{"tags":"a"}`:                    "tags: write a list of texts",
		`{"tags":["A b"]}`:                "small letters",
		`{"vlan":4095}`:                   "1 to 4094",
		`{"bridge":"vmbr0,firewall=0"}`:   "the name of a bridge",
		`{"bridge":"vmbr9"}`:              "its operator allows vmbr0, vmbr1",
		`{"storage":"nfs"}`:               "its operator allows disks",
		`{"resource_pool":"other"}`:       "one below it",
		`{"cicustom":"user=/etc/passwd"}`: "snippets",
		`{"cpu":"host\nargs: -x"}`:        "a CPU type",
		`[]`:                              "write a block",
	} {
		err := d.Settings(json.RawMessage(raw))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("Settings(%s) = %v, want %q", raw, err, want)
		}
	}
}
