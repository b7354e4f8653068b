package ironic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tendril-run/tendril/internal/pool"
)

// erases are the settings of clean that want the disks of a machine that ends erased.
var erases = []string{"metadata", "full"}

// Rebuild implements pool.Rebuilder: Ironic's verb rebuild writes the image again on the same server,
// whose allocation stays. It erases no other disk, so where the template wants that the server is
// given back and cleaned.
//
// extraRebuild has when the server's state had changed last before it was asked for: an agent that
// takes the run up knows by it whether the rebuild has begun.
func (d *Driver) Rebuild(ctx context.Context, ref pool.Ref, spec pool.Spec, progress pool.Progress) (begun bool, err error) {
	progress.Secret(spec.Init.Password)
	begun, err = d.rebuild(ctx, ref, spec, progress)
	if err != nil {
		return begun, coded(fmt.Errorf("rebuilding machine %s: %w", ref.Name, err))
	}
	return begun, nil
}

func (d *Driver) rebuild(ctx context.Context, ref pool.Ref, spec pool.Spec, progress pool.Progress) (begun bool, err error) {
	s, err := parse(spec.Settings)
	if err != nil || s.Enroll != nil || ref.Server {
		return false, err
	}
	image, err := d.image(ctx, spec.Image)
	if err != nil {
		return false, err
	}
	if err := d.versionFor(&s); err != nil {
		return false, err
	}
	found, err := d.marked(ctx, ref.ID)
	if err != nil || found == nil {
		return false, err // Destroy says what is left of it
	}
	for range mostDeploys {
		n, err := d.read(ctx, found.UUID) // as lists don't have it
		switch {
		case err != nil:
			return false, err
		case n == nil || !n.ours(ref.ID):
			return false, nil
		case n.rebuilt() && !stageOf(n.ProvisionState).failed:
			progress.Log("the server %s is being rebuilt already", n)
			return true, nil
		}
		if why := d.keepsNot(n, spec, &s); why != "" {
			progress.Log("the server %s can't be kept for it: %s. It is undeployed, and a server deployed then", n, why)
			return false, nil
		}
		request, err := d.request(ctx, spec, &s, n)
		if err != nil {
			return false, err
		}
		request["target"] = "rebuild"
		if err := d.prepare(ctx, spec, &s, image, n, extraRebuild, n.ProvisionUpdatedAt); err != nil {
			return false, err
		}
		switch err := d.provision(ctx, n, request); {
		case err == nil:
			progress.Log("the server %s is kept for it, and the image is written again; other disks keep what is on them", n)
			return true, nil
		case !errors.Is(err, errMoved):
			return false, d.refused(n, err)
		}
		if err := d.pause(ctx, 0); err != nil {
			return false, err
		}
	}
	return false, fmt.Errorf("the server %s changes its state again and again", found)
}

// rebuilt reports whether a rebuild of Tendril's has begun, and its end was not seen yet.
func (n *node) rebuilt() bool {
	asked := n.extra(extraRebuild)
	return asked != "" && n.ProvisionUpdatedAt != asked
}

// keepsNot says why a machine can't be made again on the server that it has; "": it can.
func (d *Driver) keepsNot(n *node, spec pool.Spec, s *settings) string {
	class := cmp.Or(s.ResourceClass, n.ResourceClass)
	switch {
	case slices.Contains(erases, s.Clean) || slices.Contains(erases, n.extra(extraClean)):
		return "its disks are to be erased (clean)"
	case !slices.Contains([]string{"active", "deploy failed", "error"}, n.ProvisionState):
		return fmt.Sprintf("it is in the state %s (%s)", n.ProvisionState, stageOf(n.ProvisionState).Label)
	case n.Maintenance:
		return "it is in maintenance" + because(n.MaintenanceReason)
	case n.Retired:
		return "it is retired"
	case n.Protected:
		return "it is protected"
	case !d.usable(n):
		return "the pool may no longer use it"
	case spec.Named && spec.Node != n.String() && spec.Node != n.UUID:
		return "the template names another server"
	case class != n.ResourceClass || !n.does(spec) || slices.ContainsFunc(s.Traits, func(t string) bool { return !slices.Contains(n.Traits, t) }):
		return "it lacks the class, labels, traits, cores or memory that are asked for"
	}
	return ""
}
