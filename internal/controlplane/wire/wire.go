// Package wire has the JSON of the REST API: what it is asked and what it answers.
// Package api makes its OpenAPI document of these types, and package client speaks
// with them. A type is named as its schema in the document.
//
// They are neither rows (package store) nor what a command prints. They have no
// methods but those that JSON needs, and must not know the database.
//
// testdata/wire.golden pins the JSON of all of them. A field that is there may be
// relied on by somebody: it is not renamed and not taken away.
package wire

// Page is a part of a list.
type Page[T any] struct {
	Items      []T    `json:"items" nullable:"false" doc:"The entries of this page, in the list's order."`
	NextCursor string `json:"next_cursor,omitempty" doc:"What to give as cursor for the page that follows. Absent at the end of the list, and only there." example:"WyJwcm92aXNpb25zIiw0MV0"`
}

// Problem is what every request that fails is answered: a problem document (RFC
// 9457).
type Problem struct {
	Type   string `json:"type" doc:"Always about:blank: the reason says which problem it is." example:"about:blank"`
	Title  string `json:"title" doc:"What the status code means." example:"Unprocessable Entity"`
	Status int    `json:"status" doc:"The HTTP status code." example:"422" minimum:"400" maximum:"599"`
	Reason string `json:"reason" doc:"Which problem it is: a word that stays the same, for programs to tell by." example:"bad_snapshot"`
	Detail string `json:"detail" doc:"What is wrong, for people. It may have several lines." example:"config_snapshot.workspace: missing"`
	Hint   string `json:"hint,omitempty" doc:"What to do about it, for people." example:"choose another name"`
	// Errors name the fields.
	Errors []Fault `json:"errors,omitempty" nullable:"false" doc:"What is wrong, field by field, where it is about fields."`
	// Instance is in the server's log as well.
	Instance string `json:"instance,omitempty" doc:"Names this one occurrence in the server's log, where that has more to tell." format:"uri" example:"urn:uuid:5f2a9c1e-3b7d-4a80-9c55-d1e0a8f3b642"`
}

// Fault is what is wrong with one field of a request.
type Fault struct {
	Location string `json:"location" doc:"Where: the path of the field, beginning with body, query, path or header." example:"body.config_snapshot.workspace"`
	Message  string `json:"message" doc:"What is wrong with it." example:"missing"`
	Value    any    `json:"value,omitempty" doc:"What was sent there; of a body never, for it may be a secret."`
}
