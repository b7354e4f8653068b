package redfish

import (
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"

	"libvirt.org/go/libvirtxml"
)

// defaultBIOS are the attributes of a server that nobody has set up.
func defaultBIOS() map[string]any {
	return map[string]any{"BootDelay": 0, "Hyperthreading": "Enabled", "ProcVirtualization": "Disabled", "NumLock": "On"}
}

// biosResource is the BIOS, with the attributes that are in force or, where settings is true,
// those of the next start.
func (each *system) biosResource(d Domain, settings bool) resource {
	path := SystemPath(d.ID) + "/Bios"
	attributes := maps.Clone(each.attributes)
	if settings {
		maps.Copy(attributes, each.pending)
		return resource{
			"@odata.id": path + "/Settings", "@odata.type": "#Bios.v1_2_0.Bios", "Id": "Settings", "Name": "BIOS settings of the next start",
			"Attributes": attributes,
		}
	}
	return resource{
		"@odata.id": path, "@odata.type": "#Bios.v1_2_0.Bios", "Id": "BIOS", "Name": "BIOS", "Attributes": attributes,
		"@Redfish.Settings": resource{
			"@odata.type": "#Settings.v1_3_5.Settings", "SettingsObject": link(path + "/Settings"),
			"SupportedApplyTimes": []string{"OnReset"},
		},
		"Actions": resource{"#Bios.ResetBios": resource{"target": path + "/Actions/Bios.ResetBios"}},
	}
}

func (s *Server) bios(each *system, d Domain, w http.ResponseWriter, _ *http.Request) error {
	return show(w, each.biosResource(d, false))
}

func (s *Server) biosSettings(each *system, d Domain, w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Allow", "GET, HEAD, PATCH")
	return show(w, each.biosResource(d, true))
}

// changeBIOS takes attributes for the next start. Those that the BIOS doesn't have, and values of
// another kind, are refused, and nothing is changed then.
func (s *Server) changeBIOS(each *system, d Domain, w http.ResponseWriter, r *http.Request) error {
	if err := unchanged(r, each.biosResource(d, true)); err != nil {
		return err
	}
	var asked struct{ Attributes map[string]any }
	if err := read(r, &asked); err != nil {
		return err
	}
	known := defaultBIOS()
	for _, name := range slices.Sorted(maps.Keys(asked.Attributes)) {
		value := asked.Attributes[name]
		now, found := known[name]
		if !found {
			return &problem{http.StatusBadRequest, "PropertyUnknown", fmt.Sprintf("The property Attributes/%s is not in the list of valid properties for the resource.", name), []string{name}}
		}
		if number, ok := value.(float64); ok && number == float64(int(number)) {
			value = int(number)
			asked.Attributes[name] = value
		}
		if reflect.TypeOf(value) != reflect.TypeOf(now) {
			return wrongValue("Attributes/"+name, value)
		}
	}
	maps.Copy(each.pending, asked.Attributes)
	return done(w)
}

// resetBIOS makes the next start begin with what the BIOS had when it was new.
func (s *Server) resetBIOS(each *system, _ Domain, w http.ResponseWriter, _ *http.Request) error {
	each.pending = defaultBIOS()
	return done(w)
}

func (s *Server) showManager(_ *system, d Domain, w http.ResponseWriter, _ *http.Request) error {
	path := serviceRoot + "/Managers/" + d.ID
	return show(w, resource{
		"@odata.id": path, "@odata.type": "#Manager.v1_18_0.Manager", "Id": d.ID, "Name": d.Name + "'s BMC", "ManagerType": "BMC",
		"UUID": d.ID, "Model": "BMC of a test", "FirmwareVersion": "1.0.0", "PowerState": "On", "Status": status("OK"),
		"VirtualMedia": link(path + "/VirtualMedia"),
		"Links":        resource{"ManagerForServers": links(SystemPath(d.ID)), "ManagerForChassis": links(serviceRoot + "/Chassis/" + d.ID)},
		"Actions": resource{"#Manager.Reset": resource{
			"target": path + "/Actions/Manager.Reset", "ResetType@Redfish.AllowableValues": []string{"ForceRestart", "GracefulRestart"},
		}},
	})
}

// resetManager restarts the BMC, which ends all sessions; the server runs on.
func (s *Server) resetManager(_ *system, _ Domain, w http.ResponseWriter, _ *http.Request) error {
	s.EndSessions()
	return done(w)
}

// stickAlias marks the disk that is the virtual USB stick. libvirt keeps names that begin so.
const stickAlias = "ua-redfish-usbstick"

// isStick says whether a disk is the virtual USB stick.
func isStick(disk *libvirtxml.DomainDisk) bool {
	return disk.Alias != nil && disk.Alias.Name == stickAlias
}
