// Package proxies puts what stands between agents and `trellis serve` in real networks
// there, with its defaults: nginx and HAProxy as Debian packages them, a proxy that only
// speaks HTTP/1.1 and buffers, one that tunnels by CONNECT, and two that give up calls
// which nothing answers.
package proxies

import (
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
)

func TestMain(m *testing.M) { site.Main(m) }
