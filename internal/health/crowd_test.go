package health

import (
	"io"
	"net"
	"testing"
)

// The oldest goes for who comes next, and who has left makes room.
func TestCrowd(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // the test is over
	c := Crowd(listener, 2)
	join := func() (theirs, ours net.Conn) {
		t.Helper()
		if theirs, err = net.Dial("tcp", listener.Addr().String()); err != nil {
			t.Fatal(err)
		}
		if ours, err = c.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = theirs.Close(), ours.Close() })
		return theirs, ours
	}
	// speaks reports whether what one end says reaches the other.
	speaks := func(theirs, ours net.Conn) bool {
		if _, err := ours.Write([]byte("x")); err != nil {
			return false
		}
		_, err := io.ReadFull(theirs, make([]byte, 1))
		return err == nil
	}
	first, firstOurs := join()
	second, secondOurs := join()
	if !speaks(first, firstOurs) || !speaks(second, secondOurs) {
		t.Error("a connection was closed although there is room for it")
	}
	third, thirdOurs := join()
	if speaks(first, firstOurs) || !speaks(second, secondOurs) || !speaks(third, thirdOurs) {
		t.Error("want the first of three closed, and no other")
	}
	_ = firstOurs.Close() // its server has noticed
	_ = thirdOurs.Close()
	fourth, fourthOurs := join()
	if !speaks(second, secondOurs) || !speaks(fourth, fourthOurs) {
		t.Error("a connection was closed although another had left")
	}
}
