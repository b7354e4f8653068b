package doctor

import (
	"strings"
	"testing"
)

func TestWriteText(t *testing.T) {
	t.Parallel()
	report := newReport("test", []Result{
		{Name: "configuration", Status: OK, Message: "the environment"},
		{Name: "disk", Status: Warn, Message: "/data has 1.0 GiB free; 2.0 GiB or more lets several runs and their providers fit", Action: "make room, or set data_dir to a larger file system"},
		{Name: "queue", Status: Fail, Message: "TCP: \x1b[31mdb.example:5432 says\r\nno", Action: "check it"},
		{Name: "pool old-lab", Status: Warn, Message: "pve2 is offline", Action: "start it"},
		{Name: "token", Status: Skipped, Message: "not checked: it needs queue"},
	})
	const narrow = `ok    configuration  the environment
skip  token          not checked: it needs queue

warn  disk           /data has 1.0 GiB free; 2.0
                     GiB or more lets several runs
                     and their providers fit
                     → make room, or set data_dir
                       to a larger file system

warn  pool old-lab   pve2 is offline
                     → start it

FAIL  queue          TCP: db.example:5432 says no
                     → check it

1 ok, 2 warnings, 1 failed, 1 not checked
`
	const narrowest = `warn  disk
    /data has 1.0 GiB free; 2.0 GiB or
    more lets several runs and their
    providers fit
    → make room, or set data_dir to a
      larger file system
`
	write := func(s Style) string {
		var b strings.Builder
		if err := report.WriteText(&b, s); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if got := write(Style{Width: 50}); got != narrow {
		t.Errorf("WriteText(50 columns) =\n%s\nwant\n%s", got, narrow)
	}
	if got := write(Style{Width: 40}); !strings.Contains(got, narrowest) {
		t.Errorf("WriteText(40 columns) =\n%s\nwant in it\n%s", got, narrowest)
	}
	whole := write(Style{})
	if strings.Count(whole, "\n") != 13 || strings.Contains(whole, "\x1b") {
		t.Errorf("WriteText(no terminal) =\n%s\nwant a line for each sentence, and no colour", whole)
	}
	coloured := write(Style{Colour: true})
	for _, colour := range []string{"\x1b[32mok  \x1b[0m", "\x1b[33mwarn\x1b[0m", "\x1b[1;31mFAIL\x1b[0m"} {
		if !strings.Contains(coloured, colour) {
			t.Errorf("WriteText(colour) =\n%q\nwant %q in it", coloured, colour)
		}
	}
	for _, code := range []string{"\x1b[32m", "\x1b[33m", "\x1b[1;31m", "\x1b[2m", "\x1b[0m"} {
		coloured = strings.ReplaceAll(coloured, code, "")
	}
	if coloured != whole {
		t.Errorf("WriteText(colour) without its colours =\n%s\nwant\n%s", coloured, whole)
	}
}
