package pool

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/provisioner"
)

// ParseImport reads where a machine is that is to be imported: NODE/ID.
func ParseImport(text string) (node string, id int, err error) {
	node, number, found := strings.Cut(text, "/")
	id, err = strconv.Atoi(number)
	if !found || node == "" || err != nil || id < 1 {
		return "", 0, fmt.Errorf("%q is no machine of a pool: write NODE/ID, such as pve1/123", text)
	}
	return node, id, nil
}

// MayImport says why a machine of that id can't be taken over; nil: the pool's operator lets it be.
func (m *Maker) MayImport(w provisioner.Wanted, id int) error {
	p, err := m.pool(w)
	if err != nil {
		return err
	}
	if _, can := p.Driver.(Importer); !can {
		return fmt.Errorf("the pool %s is of kind %s, whose machines can't be imported", w.Pool, p.Config.Kind)
	}
	if ids := p.Config.ImportIDs; len(ids) != 2 || id < ids[0] || id > ids[1] {
		return fmt.Errorf("the pool %s does not let the machine %d be imported: import_ids in the agent's configuration says which may be", w.Pool, id)
	}
	return nil
}

// Import takes over a machine that exists, as w, and tells what it is. MayImport has been asked.
// ErrGone says that none bears the mark, so that nothing was done.
func (m *Maker) Import(ctx context.Context, workspace string, w provisioner.Wanted, node string, id int) (now provisioner.Machine, err error) {
	p, err := m.pool(w)
	if err != nil {
		return now, err
	}
	byMark := Ref{ID: w.ID, Name: w.Name}
	same := func(f Found) error {
		if f.Node == node && f.ExternalID == strconv.Itoa(id) {
			return nil
		}
		return fmt.Errorf("a machine with its mark exists already, as %s on node %s: deploy again, and that one is taken over", f.ExternalID, f.Node)
	}
	found, err := p.Driver.Look(ctx, byMark)
	if err == nil {
		err = same(found)
	} else if errors.Is(err, ErrGone) || errors.Is(err, ErrForeign) {
		found, err = p.Driver.(Importer).Import(ctx, node, id, Spec{ID: w.ID, Name: w.Name, Workspace: workspace}) //nolint:forcetypeassert // see MayImport
		if err != nil {
			// It may be marked all the same, also where the run is being ended.
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.Config.Timeout)
			defer cancel()
			var look error
			if found, look = p.Driver.Look(late, byMark); look == nil {
				err = same(found)
			} else if errors.Is(look, ErrGone) {
				err = errors.Join(err, ErrGone)
			}
		}
	}
	if err != nil {
		return now, err
	}
	now = machineOf(p, w, found, provision.Place{})
	now.Credentials = nil // the template's password is not its own
	return now, nil
}
