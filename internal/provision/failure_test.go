package provision

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestAsFailure(t *testing.T) {
	t.Parallel()
	full := fmt.Errorf("write the variables: %w", &os.PathError{Op: "write", Path: "/data/work/x", Err: syscall.ENOSPC})
	for _, c := range []struct {
		err  error
		code Code
		says string
	}{
		{errors.New("a defect"), CodeInternal, "a defect"},
		{full, CodeSpoolFailed, "/data/work/x: no space left on device. Make room on that disk"},
		{fmt.Errorf("prepare: %w", syscall.EDQUOT), CodeSpoolFailed, "Make room on that disk"},
		{Fail(CodeInitFailed, "its own words", full), CodeInitFailed, "its own words"},
	} {
		if f := AsFailure(c.err); f.Code != c.code || !strings.Contains(f.Message, c.says) {
			t.Errorf("AsFailure(%v) = %s: %s, want %s: %s", c.err, f.Code, f.Message, c.code, c.says)
		}
	}
}
