package doctor_test

import (
	"net"
	"testing"

	"github.com/tendril-run/tendril/internal/doctor"
)

func TestHealthPort(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	p := machine(t)
	for _, tc := range []struct {
		listen, environ string
		status          doctor.Status
		says            string
	}{
		{"", "", doctor.OK, "the agent opens no port"},
		{"127.0.0.1:0", "", doctor.OK, "served at 127.0.0.1:0"},
		{taken.Addr().String(), "", doctor.Fail, "another program has " + taken.Addr().String()},
		{"192.0.2.1:9090", "", doctor.Fail, "cannot be opened"}, // nobody's address
		{":0", "", doctor.Warn, "to all who reach this machine"},
		{"[::]:0", "", doctor.Warn, "write 127.0.0.1 before the port"},
		{":0", "KUBERNETES_SERVICE_HOST=10.0.0.1", doctor.OK, "a NetworkPolicy says who does"},
	} {
		again := p.again(t)
		again.Config.Health.Listen, again.Environ = tc.listen, []string{tc.environ}
		want(t, again.examine(t), "health", tc.status, tc.says)
	}
}
