package console

import (
	"fmt"
	"html/template"
)

// icons are drawn on a grid of 24, in strokes of the text's colour: paths only.
var icons = map[string]string{
	"brand":         "M5 21V4M12 21V4M19 21V4M3 9h18M3 16h18",
	"home":          "M4 11.5 12 5l8 6.5M6 10v9h4.5v-5h3v5H18v-9",
	"deploy":        "M12 15V4m-4.5 4L12 3.5 16.5 8M5 13v5.5h14V13",
	"provisions":    "M4 6h2M4 12h2M4 18h2M9 6h11M9 12h11M9 18h11",
	"workspaces":    "M12 3.5 20 8l-8 4.5L4 8l8-4.5ZM4 12.2l8 4.5 8-4.5M4 16.2l8 4.3 8-4.3",
	"clusters":      "M4 5h16v5.5H4ZM4 13.5h16V19H4ZM7.5 7.7h.01M7.5 16.2h.01M11 7.7h6M11 16.2h6",
	"templates":     "M6 3.5h8L19 8.5V20.5H6ZM14 3.5V8.5H19M9 13h6M9 16.5h6",
	"notifications": "M6 17V11a6 6 0 0 1 12 0v6l1.5 1.5h-15L6 17ZM10 21h4",
	"members":       "M9 11.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7ZM2.5 20a6.5 6.5 0 0 1 13 0M16 5a3.3 3.3 0 0 1 0 6.3M18 14.2A6.5 6.5 0 0 1 21.5 20",
	"audit":         "M12 3.5 19 6v6c0 4-3 7-7 8.5-4-1.5-7-4.5-7-8.5V6l7-2.5ZM9 12l2.2 2.2L15.2 10",
	"account":       "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM4.5 20.5a7.5 7.5 0 0 1 15 0",
	"signout":       "M14 4H5v16h9M10 12h11m-3.5-3.5L21 12l-3.5 3.5",
	"menu":          "M4 7h16M4 12h16M4 17h16",
	"chooser":       "m8 9.5 4-4 4 4M8 14.5l4 4 4-4",
	"auto":          "M4 5h16v11H4ZM9 20h6M12 16v4",
	"light":         "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
	"dark":          "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5Z",
	"keyboard":      "M3 6.5h18v11H3ZM7 10h.01M11 10h.01M15 10h.01M7 14h10",
	"ok":            "m5 12.5 4.5 4.5L19 7.5",
	"failed":        "M6.5 6.5l11 11M17.5 6.5l-11 11",
	"waiting":       "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17ZM12 7.5V12l3 2",
	"running":       "M20 12a8 8 0 1 1-4-6.9",
	"stopped":       "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17ZM6 18 18 6",
	"hand":          "M12 3.5 21 19.5H3L12 3.5ZM12 10v4.5M12 17h.01",
	"warning":       "M12 3.5 21 19.5H3L12 3.5ZM12 10v4.5M12 17h.01",
	"error":         "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17ZM12 7.5v5M12 16h.01",
	"info":          "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17ZM12 11v5.5M12 7.7h.01",
	"success":       "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17ZM8.5 12.2l2.5 2.5 4.7-5",
	"pause":         "M8.5 5.5v13M15.5 5.5v13",
	"play":          "M7.5 5v14l11-7-11-7Z",
	"lock":          "M6 11h12v9H6ZM8.5 11V8a3.5 3.5 0 0 1 7 0v3",
	"drift":         "M4 8c3-3 5 3 8 0s5 3 8 0M4 15c3-3 5 3 8 0s5 3 8 0",
	"key":           "M8.5 15.5a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12.3 11.5H21M17.5 11.5v3.5M20.5 11.5v2.5",
	"copy":          "M9 9h10.5v11H9ZM5 15H4.5V4H15v1",
	"search":        "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13ZM15.5 15.5 20.5 20.5",
	"plus":          "M12 5v14M5 12h14",
	"minus":         "M5 12h14",
	"edit":          "M5 19l1-4L16 5l3 3L9 18l-4 1Z",
	"trash":         "M4.5 7h15M9.5 7V4.5h5V7M6.5 7l1 13h9l1-13M10.5 11v5.5M13.5 11v5.5",
	"replace":       "M19.5 9A8 8 0 0 0 5 8M4.5 4v4.5H9M4.5 15A8 8 0 0 0 19 16M19.5 20v-4.5H15",
	"right":         "m9.5 5.5 6.5 6.5-6.5 6.5",
	"left":          "m14.5 5.5-6.5 6.5 6.5 6.5",
	"external":      "M13.5 4.5h6v6M19.5 4.5l-9 9M17 14v5.5H4.5V7H10",
	"download":      "M12 4v11m-4.5-4.5L12 15l4.5-4.5M5 19.5h14",
	"read":          "M2.5 12C5 7.5 8.3 5.5 12 5.5s7 2 9.5 6.5c-2.5 4.5-5.8 6.5-9.5 6.5s-7-2-9.5-6.5ZM12 14.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5Z",
	"retry":         "M19.5 12a7.5 7.5 0 1 1-2.5-5.6M19.5 4v4.5H15",
	"settings":      "M4 7h9M17.5 7H20M4 17h2.5M11 17h9M15.2 9.3a2.3 2.3 0 1 0 0-4.6 2.3 2.3 0 0 0 0 4.6ZM8.8 19.3a2.3 2.3 0 1 0 0-4.6 2.3 2.3 0 0 0 0 4.6Z",
}

// icon is a sign beside words, and so hidden from those who listen to a page.
func icon(name string) (template.HTML, error) {
	path, ok := icons[name]
	if !ok {
		return "", fmt.Errorf("there is no icon %q", name)
	}
	return template.HTML(`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d="` + path + `"/></svg>`), nil //nolint:gosec // of our own making
}
