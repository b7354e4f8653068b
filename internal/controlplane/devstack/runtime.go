package devstack

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
)

func writeRuntime(r instance.Runtime, dataDir string) error {
	data, err := json.MarshalIndent(r, "", "  ") //nolint:gosec // into a 0600 file, which is its place
	if err != nil {
		return fmt.Errorf("write how to reach this instance: %w", err)
	}
	if err := instance.WriteSecret(filepath.Join(dataDir, instance.RuntimeFile), append(data, '\n')); err != nil {
		return fmt.Errorf("write how to reach this instance: %w", err)
	}
	return nil
}

func removeRuntime(dataDir string) { _ = os.Remove(filepath.Join(dataDir, instance.RuntimeFile)) }
