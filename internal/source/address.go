package source

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"unicode"
)

// maxAddress is the longest repository URL accepted, in bytes.
const maxAddress = 2048

// address is a repository URL taken apart, in the one spelling that policy and
// cache compare.
type address struct {
	scheme string // https, ssh or file
	user   string // ssh only
	host   string // lower case, IPv6 in brackets; "" for file
	port   string // "" when it is the scheme's own
	// path begins with "/", has no empty, "." or ".." segment, and no ".git"
	// at its end.
	path string
	// dialPath is the path as the server is asked for it.
	dialPath string
}

// String returns the normalised address. It holds no secret: addresses with
// credentials are not parsed.
func (a address) String() string {
	authority := a.host
	if a.user != "" {
		authority = a.user + "@" + authority
	}
	if a.port != "" {
		authority += ":" + a.port
	}
	return a.scheme + "://" + authority + a.path
}

// key names the repository's directory in the cache.
func (a address) key() string {
	sum := sha256.Sum256([]byte(a.String()))
	return hex.EncodeToString(sum[:])
}

// parseAddress accepts https://, ssh://, file:// and user@host:path, and
// nothing whose meaning two parsers could disagree about. Its errors quote
// nothing of raw, which may hold a password.
func parseAddress(raw string) (address, error) {
	switch {
	case raw == "":
		return address{}, errors.New("it is empty")
	case len(raw) > maxAddress:
		return address{}, errors.New("it is too long")
	case strings.HasPrefix(raw, "-"):
		return address{}, errors.New("it begins with “-” and would be read as an option")
	case strings.ContainsFunc(raw, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) || r == unicode.ReplacementChar }):
		return address{}, errors.New("it contains blanks or control characters")
	case strings.Contains(raw, "::"):
		if !strings.Contains(raw, "://[") {
			return address{}, errors.New("git's remote helpers (“name::”) are not accepted")
		}
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return parseSCP(raw)
	}
	a := address{scheme: strings.ToLower(scheme)}
	switch a.scheme {
	case "https", "ssh", "file":
	default:
		return address{}, errors.New("only https://, ssh:// and user@host:path are accepted")
	}
	slash := strings.IndexByte(rest, '/')
	if slash < 0 {
		return address{}, errors.New("it names no repository on its host")
	}
	authority, path := rest[:slash], rest[slash:]
	if err := a.setAuthority(authority); err != nil {
		return address{}, err
	}
	return a, a.setPath(path)
}

// parseSCP reads user@host:path, the short form of ssh://user@host/path.
func parseSCP(raw string) (address, error) {
	malformed := errors.New("only https://, ssh:// and user@host:path are accepted")
	authority, path, ok := strings.Cut(raw, ":")
	if !ok || !strings.Contains(authority, "@") || strings.Contains(authority, "/") || path == "" {
		return address{}, malformed
	}
	a := address{scheme: "ssh"}
	if err := a.setAuthority(authority); err != nil {
		return address{}, err
	}
	if err := a.setPath("/" + strings.TrimPrefix(path, "/")); err != nil {
		return address{}, err
	}
	a.dialPath = path
	return a, nil
}

// setAuthority reads [user@]host[:port].
func (a *address) setAuthority(authority string) error {
	if a.scheme == "file" {
		if authority != "" {
			return errors.New("a file:// URL names no host: file:///path")
		}
		return nil
	}
	user, host, hasUser := strings.Cut(authority, "@")
	if !hasUser {
		user, host = "", authority
	}
	switch {
	case hasUser && a.scheme == "https":
		return errors.New("credentials do not belong into a URL")
	case strings.Contains(user, ":"):
		return errors.New("credentials do not belong into a URL")
	case hasUser && !validName(user, "._-"):
		return errors.New("the user name before the host is malformed")
	}
	a.user = user
	port := ""
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		host, port = host[:i], host[i+1:]
		if !validDigits(port) {
			return errors.New("the port is malformed")
		}
	}
	if host = strings.ToLower(host); !validHost(host) {
		return errors.New("the host name is malformed")
	}
	if a.scheme == "https" && port == "443" || a.scheme == "ssh" && port == "22" {
		port = ""
	}
	a.host, a.port = host, port
	return nil
}

// setPath checks each segment. The one escape accepted is %20, because hosts
// put blanks into project names; any other could hide a separator or a dot.
func (a *address) setPath(path string) error {
	path = strings.TrimSuffix(path, "/")
	a.dialPath = path
	for i, segment := range strings.Split(path, "/") {
		switch {
		case i == 0:
		case segment == "":
			return errors.New("its path has an empty segment")
		case segment == "." || segment == "..":
			return errors.New("its path has a “.” or “..” segment")
		case strings.HasPrefix(segment, "-"):
			return errors.New("a segment of its path begins with “-”")
		case strings.Contains(strings.ReplaceAll(segment, "%20", ""), "%"):
			return errors.New("its path has an encoded character other than %20")
		case strings.ContainsFunc(segment, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-._~+@,=:%()", r)
		}):
			return errors.New("its path has a character that does not belong there")
		}
	}
	if path == "" {
		return errors.New("it names no repository on its host")
	}
	a.path = path
	for strings.HasSuffix(a.path, ".git") && !strings.HasSuffix(a.path, "/.git") {
		a.path = strings.TrimSuffix(a.path, ".git")
	}
	return nil
}

func validName(s, extra string) bool {
	return s != "" && s[0] != '-' && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(extra, r)
	})
}

func validDigits(s string) bool {
	return s != "" && len(s) <= 5 && strings.Trim(s, "0123456789") == "" && s[0] != '0'
}

func validHost(host string) bool {
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		ip, err := netip.ParseAddr(inner)
		return ok && err == nil && ip.Is6() && ip.Zone() == ""
	}
	return validName(host, ".-") && host[0] != '.'
}

// Redact returns an address fit to be shown: without what may be credentials.
func Redact(raw string) string { return redact(raw) }

// redact returns raw fit to be shown: what may be credentials is cut out, and
// so are control characters.
func redact(raw string) string {
	if i := strings.IndexAny(raw, "?#"); i >= 0 {
		raw = raw[:i] + "…"
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		scheme, rest = "", raw
	} else {
		scheme += "://"
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 && (scheme != "" || strings.Contains(rest[:i], ":")) {
		rest = "…@" + rest[i+1:]
	}
	return printable(scheme+rest, 200)
}

// printable replaces what would garble a terminal and cuts at limit runes.
func printable(s string, limit int) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n++; n > limit {
			b.WriteString("…")
			break
		}
		if !unicode.IsPrint(r) {
			r = '�'
		}
		b.WriteRune(r)
	}
	return b.String()
}
