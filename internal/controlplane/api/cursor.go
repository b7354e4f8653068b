package api

import (
	"encoding/base64"
	"encoding/json"
)

// page is a part of a list.
type page[T any] struct {
	Items      []T    `json:"items" nullable:"false" doc:"The entries of this page, in the list's order."`
	NextCursor string `json:"next_cursor,omitempty" doc:"What to give as cursor for the page that follows. Absent at the end of the list, and only there." example:"WyJwcm92aXNpb25zIiw0MV0"`
}

// listed is the answer of an operation that lists.
type listed[T any] struct {
	Body page[T]
}

// PageParams are the parameters of an operation that lists.
type PageParams struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"The most entries of a page."`
	Cursor string `query:"cursor" maxLength:"2000" doc:"Where the page begins: the next_cursor of the one before. Absent: at the list's beginning."`
}

// A cursor is opaque to clients: the list's name and the keys of the last entry
// that they have seen, so that entries that come and go in between make no other
// be left out or told twice.
func encodeCursor(list string, keys ...any) string {
	text, _ := json.Marshal(append([]any{list}, keys...)) // texts and numbers only
	return base64.RawURLEncoding.EncodeToString(text)
}

// decodeCursor reads the keys of the list's cursor into keys, or leaves them as
// they are where there is no cursor.
func decodeCursor(list, cursor string, keys ...any) error {
	if cursor == "" {
		return nil
	}
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return badCursor(cursor)
	}
	var parts []json.RawMessage
	if json.Unmarshal(text, &parts) != nil || len(parts) != len(keys)+1 || string(parts[0]) != `"`+list+`"` {
		return badCursor(cursor)
	}
	for i, key := range keys {
		if json.Unmarshal(parts[i+1], key) != nil {
			return badCursor(cursor)
		}
	}
	return nil
}

// listOf is a page as it is answered: never null.
func listOf[T any](items []T, next string) *listed[T] {
	if items == nil {
		items = []T{}
	}
	return &listed[T]{Body: page[T]{Items: items, NextCursor: next}}
}
