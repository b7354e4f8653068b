package devstack

import (
	"errors"
	"io/fs"
	"os"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/notify"
)

// ensureKey reads the control plane's own key, which is made at the first start.
func ensureKey(file string) (*notify.Key, error) {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		if err := instance.WriteSecret(file, notify.NewKey()); err != nil {
			return nil, err
		}
	}
	return notify.ReadKey(file)
}
