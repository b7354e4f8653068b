package devstack

import (
	"context"
	"fmt"
	"os"
	"time"

	exampletemplates "github.com/tendril-run/tendril/examples/templates"
	"github.com/tendril-run/tendril/internal/localironic"
	"github.com/tendril-run/tendril/templates"
)

const (
	// metalPool is the name of the pool whose servers are a local Ironic's, and metalTemplate that of
	// the template by which they are provisioned.
	metalPool, metalTemplate = "metal", "bare-metal"
	// metalImage is what its agent calls the image, which fake hardware never reads.
	metalImage = "debian"
	// metalServers is how many there are.
	metalServers = 5
	// metalDelay is how long a deployment takes there, in seconds: long enough to see its steps.
	metalDelay = 3
	// metalStart bounds its start, with the servers.
	metalStart = 2 * time.Minute
)

// agentImage is one of a pool's [[pools.images]].
type agentImage struct {
	Name     string `toml:"name"`
	Source   string `toml:"source"`
	Checksum string `toml:"checksum"`
}

// startMetal starts a real Ironic with fake hardware, and makes a pool of it for the agent. Each
// start is empty: the servers of the last one are gone.
func (s *Stack) startMetal(ctx context.Context) error {
	done := s.report.Step("OpenStack Ironic with fake servers")
	dir := s.options.path("ironic")
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the Ironic of before: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of Ironic: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, metalStart)
	defer cancel()
	var err error
	if s.metal, err = localironic.Run(ctx, dir, localironic.Options{Fake: fmt.Sprintf("deploy_delay = %d", metalDelay)}); err != nil {
		return fmt.Errorf("start OpenStack Ironic: %w", err)
	}
	var names []string
	for i := range metalServers {
		names = append(names, fmt.Sprintf("server-%d", i+1))
	}
	if err := s.metal.Enroll(ctx, names...); err != nil {
		return fmt.Errorf("enroll the fake servers: %w", err)
	}
	s.pools = append(s.pools, agentPool{
		Name: metalPool, Kind: "ironic", URL: s.metal.URL,
		Images: []agentImage{{metalImage, "http://127.0.0.1/debian.raw", "d41d8cd98f00b204e9800998ecf8427e"}},
	})
	// The agent says the rest of it.
	_, err = s.db.Exec(ctx, `
		INSERT INTO public.pools (org_id, cluster_id, name, kind, problem, reported_by, reported_at, template_id)
		SELECT c.org_id, c.id, $2, 'ironic', 'the agent is starting', gen_random_uuid(), now(), t.id
		FROM public.clusters c JOIN public.templates t ON t.org_id = c.org_id AND t.name = $3 WHERE c.id = $1
		ON CONFLICT (cluster_id, name) DO UPDATE SET template_id = EXCLUDED.template_id`, s.home.cluster, metalPool, metalTemplate)
	if err != nil {
		return fmt.Errorf("choose the template of the servers: %w", err)
	}
	done(fmt.Sprintf("pool %s, %d servers, image %s; what is provisioned there is gone when this ends", metalPool, metalServers, metalImage))
	return nil
}

// metalSample is the example of a bare-metal server.
func metalSample() templates.Template {
	return templates.Template{Name: metalTemplate, Description: "One server of the pool " + metalPool + ", with the image " + metalImage + ".", Files: exampletemplates.BareMetal()}
}
