package executor

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/managedstate"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/spool"
)

// A write that has failed may have been told of all the same: the next one has
// another number, for under one number the database takes one state only.
func TestNumberOfAStateIsGivenOnce(t *testing.T) {
	t.Parallel()
	key, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	recipient, err := seal.ParseRecipient(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe() // which takes what is written, and cannot be synced
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close() //nolint:errcheck // the test is over
	m := &managedState{log: spool.NewWriter(write, nil), recipient: recipient, slot: 1}
	for i := range m.slots {
		if m.slots[i], err = os.Create(filepath.Join(t.TempDir(), "slot")); err != nil {
			t.Fatal(err)
		}
		defer m.slots[i].Close() //nolint:errcheck // the test is over
	}
	for serial := range uint64(2) {
		if err := m.write([]byte("{}"), managedstate.Header{Serial: serial}); err == nil {
			t.Fatal("write() with a spool that cannot be synced = nil, want an error")
		}
	}
	lines := bufio.NewScanner(read)
	for _, want := range []string{`"number":1,"slot":0`, `"number":2,"slot":0`} {
		if lines.Scan(); !strings.Contains(lines.Text(), want) {
			t.Errorf("the spool says %s, want %s", lines.Text(), want)
		}
	}
	_ = m.log.Close() // it says the same again
	_ = write.Close()
}
