package spool

import (
	"os"
	"sync"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestDoorbell(t *testing.T) {
	t.Parallel()
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDoorbell(out)
	if err != nil {
		t.Fatal(err)
	}
	for range 1 << 17 { // twice what a pipe holds, with no one reading
		if n, err := d.Write([]byte{0}); n != 1 || err != nil {
			t.Fatalf("Write() = %d, %v, want 1, nil", n, err)
		}
	}
	wake := make(chan struct{}, 1)
	var wg sync.WaitGroup
	wg.Go(func() { Listen(in, wake) })
	select {
	case <-wake:
	case <-patience.After(deadline):
		t.Error("Listen() did not wake")
	}
	if err := out.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if _, err := d.Write([]byte{0}); err == nil {
		t.Error("Write() to a closed doorbell = nil, want an error")
	}
}

func TestDoorbellWithoutListener(t *testing.T) {
	t.Parallel()
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	d, err := NewDoorbell(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Write([]byte{0}); err == nil {
		t.Error("Write() with no one at the other end = nil, want an error")
	}
}
