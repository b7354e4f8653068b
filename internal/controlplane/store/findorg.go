package store

import (
	"context"
	"fmt"
	"strings"
)

// FindOrg returns the organisation of that id or name; "" means the only one
// that the person belongs to. A *RefusedError says so when there is none such,
// or several, with one answer for those that do not exist and those of others.
func (s *Store) FindOrg(ctx context.Context, ref string) (Org, error) {
	orgs, err := s.Orgs(ctx)
	if err != nil {
		return Org{}, err
	}
	var matching []Org
	names := make([]string, len(orgs))
	for i, o := range orgs {
		names[i] = o.Name
		if strings.EqualFold(o.ID.String(), ref) {
			return o, nil
		}
		if ref == "" || o.Name == ref {
			matching = append(matching, o)
		}
	}
	switch {
	case len(matching) == 1:
		return matching[0], nil
	case len(orgs) == 0 && ref == "":
		return Org{}, &RefusedError{Code: "PT422", Reason: "org_missing", Message: "you belong to no organisation", Hint: "have an admin of one add you"}
	case ref == "":
		return Org{}, &RefusedError{Code: "PT422", Reason: "org_missing", Message: "you belong to several organisations: " + strings.Join(names, ", "), Hint: "say which one"}
	case len(matching) > 1:
		return Org{}, &RefusedError{Code: "PT422", Reason: "org_ambiguous", Message: fmt.Sprintf("you belong to several organisations named %q", ref), Hint: "give the id"}
	}
	return Org{}, &RefusedError{Code: "PT404", Reason: "org_not_found", Message: fmt.Sprintf("you belong to no organisation %q", ref)}
}
