package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/network"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// usual is how long a test waits for what must happen.
const usual = 2 * time.Minute

// The names by which containers reach each other and the test. The certificate
// that the test's servers have is for names below example.com.
const (
	databaseHost = "postgres"
	gitHost      = "git.example.com"
	trellisHost  = "trellis.example.com"
)

// The password of whoever signs in to PostgreSQL, which only this network
// reaches.
const password = "one-for-all"

// stage is what all tests share: the images, a network, PostgreSQL with a
// database that trellis's container has migrated, to be copied.
type stage struct {
	only     *os.File // keeps other runs of this checkout's tests waiting
	images   *images
	docker   *testcontainers.DockerClient
	network  *testcontainers.DockerNetwork
	gateway  string // the machine's own address there
	database testcontainers.Container
	address  string // of PostgreSQL, for the test itself
	migrated string // what trellis migrate has said
}

// newStage returns what it has made, also with an error.
func newStage(ctx context.Context) (*stage, error) {
	s := &stage{}
	for _, step := range []func(context.Context) error{s.build, s.connect, s.startPostgres, s.migrate} {
		if err := step(ctx); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *stage) build(ctx context.Context) (err error) {
	s.images = newImages()
	if s.only, err = onlyRun(ctx, s.images.registry); err != nil {
		return err
	}
	return s.images.buildAll(ctx)
}

func (s *stage) connect(ctx context.Context) (err error) {
	if s.docker, err = testcontainers.NewDockerClientWithOpts(ctx); err != nil {
		return fmt.Errorf("reach Docker: %w", err)
	}
	if err := removeLabelled(ctx, s.docker, s.images.registry); err != nil {
		return err
	}
	if s.network, err = network.New(ctx, network.WithLabels(labelled(s.images.registry))); err != nil {
		return fmt.Errorf("make a network: %w", err)
	}
	found, err := s.docker.NetworkInspect(ctx, s.network.ID, client.NetworkInspectOptions{})
	if err != nil {
		return fmt.Errorf("look at the network: %w", err)
	}
	s.gateway = found.Network.IPAM.Config[0].Gateway.String()
	return nil
}

// startPostgres makes a server that gives up durability for speed.
func (s *stage) startPostgres(ctx context.Context) (err error) {
	const start = `printf %s "$PASSWORD" >/tmp/password
initdb -D /tmp/data -U owner --pwfile=/tmp/password --auth=scram-sha-256 -E UTF8 --no-locale >/dev/null
echo 'host all all all scram-sha-256' >>/tmp/data/pg_hba.conf
exec postgres -D /tmp/data -c listen_addresses='*' -c unix_socket_directories=/tmp -c fsync=off -c synchronous_commit=off -c full_page_writes=off`
	s.database, err = testcontainers.Run(ctx, s.images.postgres,
		network.WithNetwork([]string{databaseHost}, s.network), testcontainers.WithLabels(labelled(s.images.registry)),
		testcontainers.WithEnv(map[string]string{"PASSWORD": password}),
		testcontainers.WithCmd("sh", "-euc", start),
		testcontainers.WithWaitStrategy(wait.ForLog("database system is ready to accept connections").WithStartupTimeout(patience.For(usual))),
	)
	if err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	// No port of the machine is opened for it.
	s.address, err = s.database.ContainerIP(ctx)
	return err
}

// migrate has the control plane's container do it.
func (s *stage) migrate(ctx context.Context) error {
	if err := s.sql(ctx, "postgres", "CREATE DATABASE "+template); err != nil {
		return err
	}
	c, err := testcontainers.Run(ctx, s.images.trellis(oldVersion),
		network.WithNetwork(nil, s.network), testcontainers.WithLabels(labelled(s.images.registry)), hardened(),
		testcontainers.WithEnv(map[string]string{"TRELLIS_DATABASE_URL": s.inside("owner", template)}),
		testcontainers.WithCmd("migrate"),
		testcontainers.WithWaitStrategy(wait.ForExit().WithExitTimeout(patience.For(usual))),
	)
	if c != nil {
		defer c.Terminate(ctx) //nolint:errcheck // it has ended
	}
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if s.migrated, err = logOf(ctx, c); err != nil {
		return err
	}
	state, err := c.State(ctx)
	if err == nil && state.ExitCode != 0 {
		err = fmt.Errorf("trellis migrate has failed: %s", s.migrated)
	}
	return err
}

// close removes all that was made.
func (s *stage) close() error {
	ctx, cancel := patience.Context(context.Background(), usual)
	defer cancel()
	var errs []error
	if s.only != nil {
		defer s.only.Close() //nolint:errcheck // nothing was written
	}
	if s.database != nil {
		errs = append(errs, s.database.Terminate(ctx))
	}
	if s.network != nil {
		errs = append(errs, s.network.Remove(ctx))
	}
	if s.docker == nil {
		return errors.Join(errs...)
	}
	for _, image := range s.images.all() {
		_, err := s.docker.ImageRemove(ctx, image, client.ImageRemoveOptions{})
		errs = append(errs, err)
	}
	return errors.Join(append(errs, s.docker.Close())...)
}
