package signin

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// maxJWTs is how many are remembered.
	maxJWTs = 10_000
	// remembered is how long one that was verified counts without another look.
	remembered = time.Minute
)

// jwts are those that were verified lately, by their digests: a program sends the
// same one with each request.
type jwts struct {
	known *lru.Cache[string, verified]
}

type verified struct {
	found
	look time.Time // when another look is due
}

func newJWTs() jwts {
	known, _ := lru.New[string, verified](maxJWTs) // fails for no size only
	return jwts{known}
}

// get returns whom one names; nobody where it was not verified lately.
func (j jwts) get(digest []byte) found {
	v, _ := j.known.Get(string(digest))
	if !time.Now().Before(v.look) {
		return found{}
	}
	return v.found
}

func (j jwts) add(digest []byte, f found) {
	look := time.Now().Add(remembered)
	if f.until.Before(look) {
		look = f.until
	}
	j.known.Add(string(digest), verified{f, look})
}
