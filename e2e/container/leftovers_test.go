package container

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	dockercontainer "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/network"
	"golang.org/x/sys/unix"
)

// The label of all that is made here. Its value is the checkout's, so that what
// a killed run has left is known by the next, and another checkout's is let be.
const label = "run.tendril.test"

// onlyRun waits until no other run of this checkout's tests goes on, and keeps
// others waiting until the file is closed. A killed run keeps nobody.
func onlyRun(ctx context.Context, checkout string) (*os.File, error) {
	path := filepath.Join(os.TempDir(), checkout+".lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keep other runs away: %w", err)
	}
	for {
		if err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return file, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another run of these tests, which has %s: %w", path, err), file.Close())
		case <-time.After(200 * time.Millisecond): // between two looks
		}
	}
}

// removeLabelled removes all containers, networks and volumes that have the label
// with this value, whether in use or not.
func removeLabelled(ctx context.Context, docker client.APIClient, value string) error {
	mine := make(client.Filters).Add("label", label+"="+value)
	containers, err := docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: mine})
	if err != nil {
		return fmt.Errorf("look for left containers: %w", err)
	}
	for _, c := range containers.Items {
		if _, err := docker.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}); err != nil {
			return fmt.Errorf("remove a left container: %w", err)
		}
	}
	networks, err := docker.NetworkList(ctx, client.NetworkListOptions{Filters: mine})
	if err != nil {
		return fmt.Errorf("look for left networks: %w", err)
	}
	for _, n := range networks.Items {
		if _, err := docker.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{}); err != nil {
			return fmt.Errorf("remove a left network: %w", err)
		}
	}
	volumes, err := docker.VolumeList(ctx, client.VolumeListOptions{Filters: mine})
	if err != nil {
		return fmt.Errorf("look for left volumes: %w", err)
	}
	for _, v := range volumes.Items {
		if _, err := docker.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{}); err != nil {
			return fmt.Errorf("remove a left volume: %w", err)
		}
	}
	return nil
}

// labelled marks what a run makes.
func labelled(value string) map[string]string { return map[string]string{label: value} }

// TestLeftoversOfAKilledRun: a running container, its network and its volume go,
// and those of others stay.
func TestLeftoversOfAKilledRun(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	left := func() string {
		t.Helper()
		value := "left-" + rand.Text()
		t.Cleanup(func() {
			if err := removeLabelled(context.Background(), shared.docker, value); err != nil {
				t.Error(err)
			}
		})
		n, err := network.New(ctx, network.WithLabels(labelled(value)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := testcontainers.Run(ctx, shared.images.slim(oldVersion), network.WithNetwork(nil, n),
			testcontainers.WithLabels(labelled(value)), testcontainers.WithEntrypoint("sleep", "600"),
			testcontainers.WithHostConfigModifier(func(h *dockercontainer.HostConfig) { h.Mounts = []mount.Mount{volume(value, value)} })); err != nil {
			t.Fatal(err)
		}
		return value
	}
	count := func(value string) string {
		t.Helper()
		mine := make(client.Filters).Add("label", label+"="+value)
		containers, err1 := shared.docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: mine})
		networks, err2 := shared.docker.NetworkList(ctx, client.NetworkListOptions{Filters: mine})
		volumes, err3 := shared.docker.VolumeList(ctx, client.VolumeListOptions{Filters: mine})
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(len(containers.Items), len(networks.Items), len(volumes.Items))
	}
	gone, stays := left(), left()
	if got := count(gone); got != "1 1 1" {
		t.Fatalf("containers, networks and volumes = %s, want one of each", got)
	}
	if err := removeLabelled(ctx, shared.docker, gone); err != nil {
		t.Fatal(err)
	}
	if got := count(gone); got != "0 0 0" {
		t.Errorf("containers, networks and volumes = %s, want none to be left", got)
	}
	if got := count(stays); got != "1 1 1" {
		t.Errorf("another's containers, networks and volumes = %s, want all of them", got)
	}
}
