package redact

import (
	"crypto/rand"
	"encoding/base64"
	"runtime"
	"testing"
)

// A child may know many secrets, in some thirty forms each.
func TestASetOfSecretsIsSmall(t *testing.T) {
	for name, tt := range map[string]struct {
		values, size int
		limit        int64
	}{
		"many":  {100, 1 << 10, 8 << 20},
		"large": {2, 64 << 10, 8 << 20},
		"huge":  {1, 1 << 20, 8 << 20},
	} {
		values := make([]string, tt.values)
		for i := range values {
			random := make([]byte, tt.size*3/4)
			_, _ = rand.Read(random) // never fails
			values[i] = base64.StdEncoding.EncodeToString(random)
		}
		before := heap()
		var s Secrets
		s.Add(values...)
		took := heap() - before
		t.Logf("%s: %d patterns, %d KB", name, len(s.parts), took>>10)
		if took > tt.limit {
			t.Errorf("%d secrets of %d bytes take %d KB, want at most %d", tt.values, tt.size, took>>10, tt.limit>>10)
		}
		runtime.KeepAlive(&s)
	}
}

// heap returns how many bytes of it are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools had before the first one
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
