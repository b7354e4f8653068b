package libvirt

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/kdomanski/iso9660"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/pool/cloudconfig"
)

// seed is what cloud-init reads at a machine's first start, in the form that it calls NoCloud:
// an ISO 9660 image labelled cidata. ISO 9660 because every guest that has cloud-init reads it,
// and because it has no sizes to choose as FAT does.
func seed(spec pool.Spec) ([]byte, error) {
	user, err := cloudconfig.Document(spec)
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
