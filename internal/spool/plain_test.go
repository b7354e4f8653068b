package spool

import "testing"

// Every byte, at every place of a word and behind one.
func TestPlainRun(t *testing.T) {
	t.Parallel()
	for length := range 20 {
		for at := range length {
			for b := range 256 {
				text := make([]byte, length)
				for i := range text {
					text[i] = [...]byte{'a', ' ', '!', '#', '[', ']', 0x7f, 0x80, 0xa2, 0xdc, 0xff}[i%11]
				}
				text[at] = byte(b)
				want := length
				if !plain(byte(b)) {
					want = at
				}
				if got := plainRun(text); got != want {
					t.Fatalf("plainRun(%q) = %d, want %d", text, got, want)
				}
			}
		}
	}
}
