package redact

import "bytes"

// Tokens of well-known kinds are hidden although nobody has added them: a program
// prints one that it has just created, or found in a file. They are recognised
// by how they begin and by what follows. Anything shorter than a real one stays.

// maxToken is how much of a possible token is read, and held back, before it is
// decided, in bytes.
const maxToken = 4 << 10

// tokenKind is what is known of one kind of token.
type tokenKind struct {
	// judge reads what follows the token's name, at most maxToken bytes;
	// whole says that no more will come.
	judge func(rest []byte, whole bool) verdict
	// keep leaves the name to be read, for it is no part of the secret.
	keep bool
}

// verdict is what rest[from:to] is.
type verdict struct {
	answer   answer
	from, to int
	more     *class // what follows belongs to it, as long as it is of this class
}

type answer int

const (
	isNot answer = iota
	undecided
	isToken
	beginsKey // of a private key in PEM: its lines follow
	endsKey
)

// class is a set of bytes.
type class [256]bool

func classOf(ranges string) *class {
	var c class
	for i := 0; i < len(ranges); i++ {
		if i+2 < len(ranges) && ranges[i+1] == '-' {
			for b := int(ranges[i]); b <= int(ranges[i+2]); b++ {
				c[b] = true
			}
			i += 2
			continue
		}
		c[ranges[i]] = true
	}
	return &c
}

// run returns how many bytes of p, from i on, are of the class.
func (c *class) run(p []byte, i int) int {
	from := i
	for i < len(p) && c[p[i]] {
		i++
	}
	return i - from
}

var (
	capitals  = classOf("A-Z0-9")
	letters   = classOf("A-Za-z0-9")
	words     = classOf("A-Za-z0-9_")
	urlBase64 = classOf("A-Za-z0-9_-")
	dotted    = classOf("A-Za-z0-9_.-")
	stdBase64 = classOf("A-Za-z0-9+/=")
	bearer    = classOf("A-Za-z0-9_.~+/=-")
	label     = classOf("A-Z0-9 ")
)

// atLeast are tokens whose name is followed by that many bytes of a class.
func atLeast(least int, of *class) *tokenKind {
	return &tokenKind{judge: func(rest []byte, whole bool) verdict {
		n := of.run(rest, 0)
		switch {
		case n >= least:
			return verdict{answer: isToken, to: n, more: of}
		case n == len(rest) && !whole:
			return verdict{answer: undecided}
		}
		return verdict{}
	}}
}

// named is like atLeast, and the name stays.
func named(least int, of *class) *tokenKind {
	s := atLeast(least, of)
	s.keep = true
	return s
}

// webToken is the rest of a JSON Web Token: three parts in base64. Where the
// second is long, what it begins with decides.
func webToken(rest []byte, whole bool) verdict {
	const least = 8
	open := len(rest) < maxToken && !whole
	header := urlBase64.run(rest, 0)
	if header == len(rest) && open {
		return verdict{answer: undecided}
	}
	if header < least || header == len(rest) || rest[header] != '.' {
		return verdict{}
	}
	payload := urlBase64.run(rest, header+1)
	end := header + 1 + payload
	switch {
	case end == len(rest) && open:
		return verdict{answer: undecided}
	case end == len(rest) && bytes.HasPrefix(rest[header+1:], []byte("eyJ")) && payload >= least:
		return verdict{answer: isToken, to: end, more: dotted}
	case payload < least || end == len(rest) || rest[end] != '.':
		return verdict{}
	}
	return verdict{answer: isToken, to: end + 1 + urlBase64.run(rest, end+1), more: urlBase64}
}

// maxUserinfo is how long user and password of a URL may be, in bytes.
const maxUserinfo = 1 << 10

// userinfo is the password before the host of a URL. One may have a slash that
// should have been escaped; what is after a port is a path.
func userinfo(rest []byte, whole bool) verdict {
	limit := min(len(rest), maxUserinfo)
	colon, at, slash := -1, -1, false
scan:
	for i, c := range rest[:limit] {
		switch {
		case c <= ' ' || c == 0x7f || bytes.IndexByte([]byte("\"'<>`\\|"), c) >= 0:
			limit = i
			break scan
		case c == ':' && colon < 0 && !slash:
			colon = i
		case c == '@':
			if colon < 0 {
				return verdict{} // a user alone
			}
			at = i
			if slash {
				limit = i
				break scan
			}
		case c == '/' || c == '?' || c == '#':
			if at >= 0 || colon < 0 || digits(rest[colon+1:i]) {
				limit = i
				break scan
			}
			slash = true
		}
	}
	if limit == len(rest) && limit < maxUserinfo && !whole {
		return verdict{answer: undecided}
	}
	if at > colon+1 {
		return verdict{answer: isToken, from: colon + 1, to: at}
	}
	return verdict{}
}

func digits(p []byte) bool {
	for _, b := range p {
		if b < '0' || b > '9' {
			return false
		}
	}
	return true
}

// keyHeader is the rest of "-----BEGIN RSA PRIVATE KEY-----".
func keyHeader(rest []byte, whole bool) verdict {
	const longest = 64
	n := label.run(rest[:min(len(rest), longest)], 0)
	dashes := rest[n:min(len(rest), n+5)]
	switch {
	case n == longest || !bytes.HasPrefix([]byte("-----"), dashes):
		return verdict{}
	case len(dashes) < 5 && whole || len(dashes) == 5 && !bytes.Contains(rest[:n], []byte("PRIVATE KEY")):
		return verdict{}
	case len(dashes) < 5:
		return verdict{answer: undecided}
	}
	return verdict{answer: beginsKey}
}

func keyFooter([]byte, bool) verdict { return verdict{answer: endsKey} }

// prefix is how tokens of a kind begin. The first named bytes are their name.
type prefix struct {
	text  string
	named int
	kind  *tokenKind
}

// prefixes are the beginnings of all tokens. Each has minSecret bytes or more.
var prefixes = func() (all []prefix) {
	add := func(s *tokenKind, texts ...string) {
		for _, text := range texts {
			all = append(all, prefix{text, len(text), s})
		}
	}
	add(atLeast(16, capitals), "AKIA", "ASIA")                                                 // AWS: ids of access keys
	add(atLeast(30, letters), "ghp_", "gho_", "ghu_", "ghs_", "ghr_")                          // GitHub
	add(atLeast(22, words), "github_pat_")                                                     //
	add(atLeast(20, urlBase64), "glpat-", "gldt-", "glrt-", "glcbt-")                          // GitLab
	add(atLeast(10, urlBase64), "xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxe-", "xapp-") // Slack
	add(atLeast(35, urlBase64), "AIza")                                                        // Google: keys
	add(atLeast(20, urlBase64), "ya29.")                                                       // Google: access tokens
	add(atLeast(16, letters), "sk_live_", "rk_live_")                                          // Stripe
	add(atLeast(30, letters), "npm_")                                                          //
	add(atLeast(40, urlBase64), "pypi-AgEI")                                                   //
	add(atLeast(50, capitals), "AGE-SECRET-KEY-1")                                             // age
	add(atLeast(40, urlBase64), "tnd_")                                                        // Tendril
	add(atLeast(20, dotted), "hvs.", "hvb.", "hvr.")                                           // Vault
	add(atLeast(40, letters), "dop_v1_", "doo_v1_", "dor_v1_")                                 // DigitalOcean
	add(atLeast(40, urlBase64), "sk-ant-", "sk-proj-")                                         // Anthropic, OpenAI
	add(named(20, bearer), "Bearer ", "bearer ")
	add(named(8, bearer), "Authorization: Bearer ", "authorization: bearer ", "Authorization: Basic ", "authorization: basic ")
	add(named(40, stdBase64), "AccountKey=") // Azure Storage
	add(&tokenKind{judge: keyHeader, keep: true}, "-----BEGIN ")
	add(&tokenKind{judge: keyFooter, keep: true}, "-----END ")
	// A JSON object whose first key begins with a small letter.
	for _, next := range []byte("hijklmnopqrstuvwxyz0123456") {
		add(&tokenKind{judge: webToken}, "eyJ"+string(next))
	}
	url := &tokenKind{judge: userinfo, keep: true}
	for c := range urlBase64 {
		if urlBase64[c] || c == '%' || c == '$' || c == ':' || c == '.' || c == '~' || c == '+' {
			all = append(all, prefix{"://" + string(rune(c)), 3, url})
		}
	}
	return all
}()
