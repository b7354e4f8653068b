package site

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// PeakMemory is the most resident memory a process has had, in bytes; 0 for one
// that is not there.
func PeakMemory(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, after, ok := strings.Cut(string(text), "VmHWM:")
	if !ok {
		return 0 // a zombie has none
	}
	kib, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}
