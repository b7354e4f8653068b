package libvirt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kdomanski/iso9660"
	"go.yaml.in/yaml/v3"

	"github.com/tendril-run/tendril/internal/pool"
)

// maxUserData bounds a template's cloud-config document, in bytes.
const maxUserData = 256 << 10

// seed is what cloud-init reads at a machine's first start, in the form that it calls NoCloud:
// an ISO 9660 image labelled cidata. ISO 9660 because every guest that has cloud-init reads it,
// and because it has no sizes to choose as FAT does.
func seed(spec pool.Spec) ([]byte, error) {
	user, err := userData(spec)
	if err != nil {
		return nil, err
	}
	meta, err := json.Marshal(map[string]string{"instance-id": spec.ID, "local-hostname": spec.Name})
	if err != nil {
		return nil, err
	}
	network, err := json.Marshal(networkConfig(spec))
	if err != nil {
		return nil, err
	}
	// JSON is YAML, and leaves nothing to quote.
	return SeedImage(map[string][]byte{"user-data": user, "meta-data": meta, "network-config": network})
}

// SeedImage makes the image that has a seed's files.
func SeedImage(files map[string][]byte) ([]byte, error) {
	image, err := iso9660.NewWriter()
	if err != nil {
		return nil, fmt.Errorf("the seed can't be made: %w", err)
	}
	defer func() { _ = image.Cleanup() }()
	for name, content := range files {
		if err := image.AddFile(bytes.NewReader(content), name); err != nil {
			return nil, fmt.Errorf("the seed's %s: %w", name, err)
		}
	}
	var out bytes.Buffer
	if err := image.WriteTo(&out, "cidata"); err != nil {
		return nil, fmt.Errorf("the seed can't be made: %w", err)
	}
	return out.Bytes(), nil
}

// userData is the cloud-config document: what the machine's settings come to, and the
// template's own document over it. Its lists come after ours and its values win.
func userData(spec pool.Spec) ([]byte, error) {
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

// networkConfig is version 2 of cloud-init's, for the one interface, known by its MAC address.
func networkConfig(spec pool.Spec) map[string]any {
	port := map[string]any{"match": map[string]any{"macaddress": macOf(spec.ID)}}
	if !spec.Address.IsValid() {
		port["dhcp4"] = true
	} else {
		port["addresses"] = []string{spec.Address.String()}
		if spec.Gateway.IsValid() {
			// Not routes: where cloud-init writes for ifupdown it sets those by the command
			// route, which few images have. All renderers know these.
			key := "gateway4"
			if spec.Gateway.Is6() {
				key = "gateway6"
			}
			port[key] = spec.Gateway.String()
		}
		if len(spec.Nameservers) > 0 {
			servers := make([]string, 0, len(spec.Nameservers))
			for _, server := range spec.Nameservers {
				servers = append(servers, server.String())
			}
			port["nameservers"] = map[string]any{"addresses": servers}
		}
	}
	return map[string]any{"version": 2, "ethernets": map[string]any{"primary": port}}
}
