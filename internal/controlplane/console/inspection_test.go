package console_test

import (
	"strings"
	"testing"
)

// An inspection is called by what it looks at: its workspace is none.
func TestInspectionsByName(t *testing.T) {
	t.Parallel()
	e := newEstate(t)
	e.force(t, "operation = 'inspect' WHERE workspace_id = $1 AND status = 'PROCESSING'", e.workspaces["data/prod"])
	number := e.Text(t, "SELECT number::text FROM public.provisions WHERE operation = 'inspect'")
	for path, around := range map[string][2]string{
		"/":                             {`id="running"`, `id="waiting"`},
		"/provisions?operation=inspect": {`<tbody>`, `</tbody>`},
	} {
		page := e.get(t, e.viewer, path)
		_, shown, _ := strings.Cut(page, around[0])
		shown, _, _ = strings.Cut(shown, around[1])
		shown = strings.NewReplacer("<bdi>", "", "</bdi>", "").Replace(shown)
		if !strings.Contains(shown, "#"+number+" Inspection of envtempl v1.4.0</a>") || strings.Contains(shown, "data/prod") {
			t.Errorf("GET %s = %s, want the inspection by its template, and not by its workspace", path, shown)
		}
		wellFormed(t, path, page)
	}
}
