package doctor

import (
	"context"
	"errors"
	"strings"

	"github.com/tendril-run/tendril/internal/config"
)

func (d *doctor) configuration(context.Context) verdict {
	from := "the environment"
	if d.File != "" {
		from = d.File + " and the environment"
	}
	if invalid, isInvalid := errors.AsType[*config.Invalid](d.ConfigErr); isInvalid {
		return fail("correct it; the README's configuration reference describes each key", "%s: %s", from, strings.Join(invalid.Problems, "; "))
	}
	if d.ConfigErr != nil {
		return fail("name the right file by --config or TENDRIL_CONFIG", "%v", d.ConfigErr)
	}
	if slots, why := d.Config.RunsAtOnce(); why != "" {
		return warn("set slots = 1, or start the agent as root so that each run gets a uid of its own", "%s, agent %q, slots %d, of which %d is used: %s", from, d.Config.Name, d.Config.Slots, slots, why)
	}
	return ok("%s, agent %q, slots %d", from, d.Config.Name, d.Config.Slots)
}
