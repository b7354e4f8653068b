// Package cloudconfig writes the cloud-config document that a machine reads at its first start.
//
// Every kind of pool that gives its machines one has the same: what the template's block cloud_init
// comes to, and over it the template's own document. How it gets to the machine is the driver's.
//
// It must not know any hypervisor.
package cloudconfig

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tendril-run/tendril/internal/pool"
)

// maxUserData bounds a template's cloud-config document, in bytes.
const maxUserData = 256 << 10

// Document is the cloud-config document: what the machine's settings come to, and the
// template's own document over it. Its lists come after ours and its values win.
func Document(spec pool.Spec) ([]byte, error) {
	init := spec.Init
	config := map[string]any{
		"hostname":         spec.Name,
		"manage_etc_hosts": true,
		"users":            []any{"default"},
		"ssh_pwauth":       init.Password != "",
	}
	if init.User != "" {
		config["user"] = init.User
	}
	if init.Password != "" {
		config["password"] = init.Password
		config["chpasswd"] = map[string]any{"expire": false}
	}
	var keys []any
	for _, key := range init.Authorized() {
		keys = append(keys, key)
	}
	if len(keys) > 0 {
		config["ssh_authorized_keys"] = keys
	}
	if init.Keys != nil {
		// cloud-init writes it before the SSH server starts, and makes no others.
		config["ssh_deletekeys"] = true
		config["ssh_keys"] = map[string]any{"ed25519_private": init.Keys.Host, "ed25519_public": init.Keys.Public(init.Keys.Host)}
	}
	if strings.TrimSpace(init.UserData) != "" {
		if len(init.UserData) > maxUserData {
			return nil, fmt.Errorf("user_data has %d bytes, and at most %d are taken", len(init.UserData), maxUserData)
		}
		var own map[string]any
		if err := yaml.Unmarshal([]byte(init.UserData), &own); err != nil {
			// Its text may be secret, so the parser's message, which quotes it, is not shown.
			return nil, fmt.Errorf("user_data is no cloud-config document: it must be a YAML mapping")
		}
		for _, key := range []string{"ssh_keys", "ssh_deletekeys"} {
			if _, says := own[key]; says && init.Keys != nil {
				return nil, fmt.Errorf("user_data has %s, and commands over SSH (after) need the host key that Tendril gives the machine; leave it out, or write by = \"agent\"", key)
			}
		}
		merge(config, own)
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("user_data has keys that are no text, or values that JSON can't have")
	}
	return append([]byte("#cloud-config\n"), text...), nil
}

// merge adds from to into: mappings are merged, lists appended, other values replaced.
func merge(into, from map[string]any) {
	for key, value := range from {
		switch value := value.(type) {
		case map[string]any:
			if old, ok := into[key].(map[string]any); ok {
				merge(old, value)
				continue
			}
		case []any:
			if old, ok := into[key].([]any); ok {
				into[key] = append(old, value...)
				continue
			}
		}
		into[key] = value
	}
}
