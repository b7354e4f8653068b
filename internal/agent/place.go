package agent

import (
	"crypto/sha256"
	"fmt"
	"os"
)

// maxPlace is the longest place that the database takes, in characters.
const maxPlace = 300

// place is where an agent says that it is: its machine's name and its data
// directory. Whoever comes with the same instance at another place has a copy
// of that directory. It cannot know what the original still runs, for locks are
// not copied: the database refuses it while the original is heard of, and does
// not let it end the original's claims after that.
func (d *dataDir) place() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find this machine's name: %w", err)
	}
	if place := host + ":" + d.root; len(place) <= maxPlace {
		return place, nil
	}
	return fmt.Sprintf("%s:%x", host, sha256.Sum256([]byte(d.root))), nil
}
