package pvesim

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFaultGrammar(t *testing.T) {
	t.Parallel()
	s := New(t, Options{})
	for _, wrong := range []string{"GET", "GET /nodes", "GET /nodes #x: cut", "GET /nodes #1-: cut", "GET /nodes: explode", "GET /nodes: slow soon", "GET [: cut", "GET /nodes: error text", "GET /nodes: flood much"} {
		if err := s.Faults(wrong); err == nil {
			t.Errorf("Faults(%q) is accepted", wrong)
		}
	}
	if err := s.Faults("GET /nodes #2-3: cut\n\n* /nodes/*/qemu: error 500 storage is busy\nPOST *: lost"); err != nil {
		t.Fatal(err)
	}
	met := func(method, path string) string {
		s.mu.Lock()
		defer s.mu.Unlock()
		if f := s.fault(method, "/api2/json"+path); f != nil {
			return f.action
		}
		return ""
	}
	for i, c := range []struct{ method, path, want string }{
		{"GET", "/nodes", ""}, {"GET", "/nodes", cutAfter}, {"PUT", "/nodes", ""}, {"GET", "/nodes", cutAfter}, {"GET", "/nodes", ""},
		{"GET", "/nodes/pve1/qemu", status}, {"GET", "/nodes/pve1/qemu/100", ""}, {"POST", "/nodes/pve1/qemu/100/clone", cutBefore},
	} {
		if got := met(c.method, c.path); got != c.want {
			t.Errorf("%d: %s %s meets %q, want %q", i, c.method, c.path, got, c.want)
		}
	}
}
