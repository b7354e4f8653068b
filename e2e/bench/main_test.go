package bench

import (
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
)

func TestMain(m *testing.M) { site.MainShipped(m) }
