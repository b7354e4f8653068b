package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/executor"
	"github.com/tendril-run/tendril/internal/job"
)

// backends are those that Terraform and OpenTofu have, with what each needs to
// be told. What may come from the environment as well is not listed.
func backends() map[string][]string {
	return map[string][]string{
		"local": nil, job.Managed: nil, "http": {"address"}, "s3": {"bucket"}, "gcs": {"bucket"}, "azurerm": {"storage_account_name", "container_name"},
		"consul": nil, "kubernetes": nil, "pg": {"conn_str"}, "oss": {"bucket"}, "cos": {"bucket"},
	}
}

// backend says where states would be kept, and whether that can be.
func (d *doctor) backend(context.Context) verdict {
	state, known := d.Config.State, backends()
	names := slices.Sorted(maps.Keys(known))
	for _, name := range append(slices.Sorted(maps.Keys(state.Config)), state.Backend) {
		if _, is := known[name]; name != "" && !is {
			return fail("use one of "+strings.Join(names, ", "), "Terraform has no backend %q", name)
		}
	}
	if forced := state.Backend; forced != "" {
		for _, argument := range known[forced] {
			if state.Config[forced][argument] == "" {
				return fail(fmt.Sprintf("set it in [state.config.%s]", forced), "the %s backend needs %s, and every template uses that backend here", forced, argument)
			}
		}
	}
	settings := d.Config.Settings().State
	for _, name := range slices.Compact(slices.Sorted(func(yield func(string) bool) {
		for name := range state.Config {
			if !yield(name) {
				return
			}
		}
		if state.Backend != "" {
			yield(state.Backend)
		}
	})) {
		if err := executor.CheckState(name, settings); err != nil {
			return fail("see the message", "%v", err)
		}
	}
	if settings.MayBeManaged() {
		return ok("states are kept in the database, sealed to the cluster's key%s",
			map[bool]string{true: ", whatever a template declares", false: " where a template declares no backend"}[state.Backend != ""])
	}
	if state.Backend != "" && state.Backend != "local" {
		return ok("every template keeps its state in the %s backend", state.Backend)
	}
	return d.localState()
}

// localState judges the directory that states lie in where a template does not
// say otherwise.
func (d *doctor) localState() verdict {
	dir := existing(d.Config.DataDir)
	if kind := passing(dir); kind != "" {
		return warn("let data_dir be on a disk that stays (a volume), or set state.backend",
			"states of templates without a backend are files in %s, on %s: they would be lost with the container or the machine's next start", dir, kind)
	}
	return ok("states of templates without a backend of their own are files in %s, and belong to this agent", d.Config.DataDir)
}

// passing says what keeps a directory no longer than a container or a machine
// runs; "" for what stays.
func passing(dir string) string {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return ""
	}
	switch int64(s.Type) { //nolint:unconvert // its type differs between architectures
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return "a file system in memory"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "the container's own layer"
	}
	return ""
}
