package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/pool/drivers"
)

// poolLimit bounds the check of one pool: each of its hosts may have to be waited for.
const poolLimit = engineLimit

// pools are the checks of what machines are made in, one for each pool.
func (d *doctor) pools() (all []check) {
	for _, p := range d.Config.Pools {
		all = append(all, check{"pool " + p.Name, []string{"configuration"}, func(ctx context.Context) verdict { return d.pool(ctx, p) }, poolLimit})
	}
	return all
}

// pool asks a pool's driver.
func (d *doctor) pool(ctx context.Context, p config.Pool) verdict {
	driver, err := drivers.Open(p.Driver())
	if err != nil {
		return fail("correct [[pools]] in the agent's configuration", "%s", strings.TrimPrefix(err.Error(), "pool "+p.Name+": "))
	}
	defer driver.Close() //nolint:errcheck // nothing was to be written
	var good, bad, todo []string
	failed := false
	for _, f := range driver.Check(ctx) {
		switch {
		case f.Problem == "" && f.Detail != "":
			good = append(good, f.What+": "+f.Detail)
		case f.Problem == "":
			good = append(good, f.What)
		default:
			bad = append(bad, f.What+": "+f.Problem)
			if f.Detail != "" {
				todo = append(todo, f.Detail)
			}
			failed = failed || !f.Warning
		}
	}
	if sockets := d.refused(p); len(sockets) > 0 {
		bad = append(bad, "runs can't use "+strings.Join(sockets, ", ")+" at unix://: libvirt refuses their uids (run.uids), which no user of this machine has")
		todo, failed = append(todo, "give tls:// URLs in hosts, or set run.uids to off"), true
	}
	action := strings.Join(todo, "; ")
	if action == "" {
		action = "correct what is named, then run this again"
	}
	switch {
	case failed:
		return fail(action, "%s", strings.Join(bad, "; "))
	case len(bad) > 0:
		return warn(action, "%s", strings.Join(bad, "; "))
	}
	return ok("%s: %s", p.Kind, strings.Join(good, "; "))
}

// refused lists the hosts of a libvirt pool whose sockets refuse runs: the daemon looks up the
// name of the caller's uid, and a run's own uid has no name. This check has the agent's uid,
// which the daemon accepts.
func (d *doctor) refused(p config.Pool) (hosts []string) {
	if p.Kind != "libvirt" || !d.isolates() {
		return nil
	}
	for name, url := range p.Hosts {
		if strings.HasPrefix(url, "unix:") {
			hosts = append(hosts, name)
		}
	}
	slices.Sort(hosts)
	return hosts
}
