package e2e

import (
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
)

func TestMain(m *testing.M) { site.Main(m) }
