// Package person has the type of the person who makes a request. Package signin puts
// it into the request's context, and handlers take it from there.
//
// The package must not know how a person signs in, nor what they may do: the
// database decides that.
package person

import (
	"context"

	"github.com/google/uuid"
)

// Person is somebody who is signed in.
type Person struct {
	ID uuid.UUID
	// Name and Email are what they are called by; both may be empty.
	Name, Email string
	// Browser is true when a cookie says who it is, and false for a token or a
	// JWT, which no foreign page can make a browser send.
	Browser bool
	// Token is true when an API token says who it is, and TokenID which one.
	Token   bool
	TokenID uuid.UUID
	// Powers are what the token may do; nil: all that the person may.
	Powers *Powers
	// Audience is the URL of the resource that the token is for; "": the whole REST API.
	Audience string
	// Tool is the name and version of the client of a tool for language models by which the person
	// asks; "": no tool.
	Tool string
}

type key struct{}

// With returns a context in which that person asks.
func With(ctx context.Context, p Person) context.Context { return context.WithValue(ctx, key{}, p) }

// From returns who asks; false when nobody is signed in.
func From(ctx context.Context) (Person, bool) {
	p, ok := ctx.Value(key{}).(Person)
	return p, ok
}

// Called is the name to show.
func (p Person) Called() string {
	switch {
	case p.Name != "":
		return p.Name
	case p.Email != "":
		return p.Email
	}
	return p.ID.String()
}
