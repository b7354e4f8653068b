package store

import "github.com/google/uuid"

// Of what the plan of the query behind ListProvisions is looked at.
const (
	OfOrg       = ofOrg
	OfWorkspace = ofWorkspace
	ByIndex     = byIndex
)

// LookQuery is lookQuery.
func LookQuery(condition string) string { return lookQuery(condition) }

// User is who asks.
func (s *Store) User() uuid.UUID { return s.user }
