package terraform

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWriteProviderMirror(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		mirror string
		direct bool
		want   string
	}{
		"network":             {"https://mirror.example/p", false, `provider_installation { network_mirror { url = "https://mirror.example/p/" } }`},
		"directory":           {"/srv/providers", false, `provider_installation { filesystem_mirror { path = "/srv/providers" } }`},
		"direct is permitted": {"/srv/${x}", true, `provider_installation { filesystem_mirror { path = "/srv/$${x}" } direct { } }`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "engine.tfrc")
			for range 2 { // each init writes it anew
				if err := WriteProviderMirror(path, test.mirror, test.direct); err != nil {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(path)
			if got := strings.Join(strings.Fields(string(text)), " "); err != nil || got != test.want {
				t.Errorf("WriteProviderMirror() wrote %s, %v, want %s", got, err, test.want)
			}
		})
	}
}
