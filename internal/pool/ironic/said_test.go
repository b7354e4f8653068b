package ironic

import (
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/redfish"
)

// What a real Ironic said of wrong BMCs and images is the row of the table that says what to do
// about it.
func TestFaultsOfRealBMCs(t *testing.T) {
	t.Parallel()
	const (
		image       = "The image can't be fetched, or differs from its checksum"
		credentials = "The BMC refuses its credentials"
		away        = "The BMC can't be reached, or the power can't be switched"
	)
	rows := map[string]string{
		"BMC answers 500":                    away,
		"BMC answers 502 as a proxy does":    away,
		"BMC answers HTML":                   away, // "Failed to get power state"
		"BMC does not switch the power":      away,
		"BMC does not take the image":        away,
		"BMC has another certificate":        away,
		"BMC has no such system":             away,
		"BMC is away":                        away,
		"BMC password is wrong":              credentials,
		"image is not found":                 image,
		"image is not found by the BMC":      image,
		"image's server is away":             image,
		"image's server is away for the BMC": image,
		"kernel is not found":                image,
		"no image is named":                  image,
		"power does not change":              away,
	}
	all, err := redfish.AllSaid()
	if err != nil {
		t.Fatal(err)
	}
	for _, said := range all {
		want, known := rows[said.Case]
		if !known {
			t.Errorf("no row is wanted of the case %q; it says %q", said.Case, said.Text)
		}
		if got := faultIn(said.Text); got.name != want {
			t.Errorf("%s, %s: the row is %q, want %q, of %q", said.Case, strings.TrimSpace(said.Asked+" "+said.State), got.name, want, said.Text)
		}
	}
}
