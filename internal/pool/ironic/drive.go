package ironic

import (
	"fmt"
	"maps"
	"strings"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/pool/cloudconfig"
)

// drive is the config drive, as the object of which Ironic makes an ISO image.
func drive(spec pool.Spec, s settings, mac string) (map[string]any, error) {
	user, err := cloudconfig.Document(spec)
	if err != nil {
		return nil, err
	}
	meta := map[string]any{"uuid": spec.ID, "name": spec.Name, "hostname": spec.Name, "tendril_machine": spec.ID}
	keys := map[string]any{}
	for i, key := range spec.Init.Authorized() {
		keys[fmt.Sprintf("key-%d", i+1)] = key
	}
	if len(keys) > 0 {
		meta["public_keys"] = keys
	}
	maps.Copy(meta, s.MetaData)
	object := map[string]any{"meta_data": meta, "user_data": string(user)}
	switch {
	case len(s.NetworkData) > 0:
		object["network_data"] = s.NetworkData
	case spec.Address.IsValid() && mac == "":
		return nil, fmt.Errorf("the address %s is reserved for it, and the server has no port whose MAC address could be told with it; add one (`baremetal port create MAC --node SERVER`), or write network_data in the block ironic", spec.Address.Addr())
	case spec.Address.IsValid():
		object["network_data"] = network(spec, mac)
	}
	return object, nil
}

// network is OpenStack's network_data.json for one port with the machine's address.
func network(spec pool.Spec, mac string) map[string]any {
	kind, everywhere, mask := "ipv6", "::", fmt.Sprint(spec.Address.Bits())
	if spec.Address.Addr().Is4() {
		kind, everywhere, mask = "ipv4", "0.0.0.0", maskOf(spec.Address.Bits())
	}
	one := map[string]any{"id": "network0", "type": kind, "link": "port0", "ip_address": spec.Address.Addr().String(), "netmask": mask, "routes": []any{}}
	if spec.Gateway.IsValid() {
		zero := everywhere
		if kind == "ipv6" {
			zero = "0"
		}
		one["routes"] = []any{map[string]any{"network": everywhere, "netmask": zero, "gateway": spec.Gateway.String()}}
	}
	services := []any{}
	for _, server := range spec.Nameservers {
		services = append(services, map[string]any{"type": "dns", "address": server.String()})
	}
	return map[string]any{
		"links":    []any{map[string]any{"id": "port0", "type": "phy", "ethernet_mac_address": strings.ToLower(mac)}},
		"networks": []any{one}, "services": services,
	}
}

// maskOf is a netmask of so many bits, for IPv4.
func maskOf(bits int) string {
	mask := ^uint32(0) << (32 - bits)
	return fmt.Sprintf("%d.%d.%d.%d", byte(mask>>24), byte(mask>>16), byte(mask>>8), byte(mask))
}
