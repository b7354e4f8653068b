package canonical

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/tendril-run/tendril/internal/lazyregexp"
)

// maxRepository is the longest address accepted, in characters.
const maxRepository = 500

// Repository is a repository's address taken apart, in its canonical form.
type Repository struct {
	Scheme string // https, ssh or file
	User   string // ssh only; "git" where the address names none
	Host   string // lower case, IPv6 in brackets; "" for file
	Port   string // "" for the scheme's default
	// Path begins with "/", has no empty, "." or ".." segment, and no ".git" at
	// its end.
	Path string
	// DialPath is the path as the server is asked for it.
	DialPath string
}

// String returns the canonical form. It holds no secret: an address with
// credentials is not parsed.
func (r Repository) String() string {
	authority := r.Host
	if r.User != "" {
		authority = r.User + "@" + authority
	}
	if r.Port != "" {
		authority += ":" + r.Port
	}
	return r.Scheme + "://" + authority + r.Path
}

// Address returns the canonical form of a repository's address. An address that
// has none is returned unchanged, so it equals nothing but itself.
func Address(raw string) string {
	r, err := ParseRepository(raw)
	if err != nil {
		return raw
	}
	return r.String()
}

const forms = "must be https://HOST/PATH, ssh://[USER@]HOST/PATH, USER@HOST:PATH or file:///PATH"

var (
	errForm          = errors.New(forms)
	errCredentials   = errors.New("holds credentials; they belong to the agent, not into the URL")
	errNoPath        = errors.New("names no repository on its host")
	errPathCharacter = errors.New("has a character in its path that does not belong there")
)

var (
	blank       = lazyregexp.New(`[\x00-\x20\x7F-\xA0]`)
	credentials = lazyregexp.New(`(?i)^([a-z][a-z0-9+.-]*://[^/]*:[^/]*@|https?://[^/]*@|[^/@]*:[^/@]*@)`)
	scpForm     = lazyregexp.New(`^([^@/:]+)@([^@/:\[\]]+):(.+)$`)
	userName    = lazyregexp.New(`^[A-Za-z0-9._][A-Za-z0-9._-]*$`)
	portNumber  = lazyregexp.New(`^[1-9][0-9]{0,4}$`)
	hostName    = lazyregexp.New(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	hostNumber  = lazyregexp.New(`(^|\.)(0x[0-9a-f]*|[0-9]+)$`)
	hostIPv6    = lazyregexp.New(`^\[[0-9a-f:]+\]$`)
	gitSuffix   = lazyregexp.New(`(?i)(/?\.git)+$`)
	encoded     = lazyregexp.New(`%([0-9A-Fa-f]{2})?`)
	// A path has these characters only. On the agent's own disk letters of other
	// scripts may be in it too; on a server they would be encoded.
	pathChars  = lazyregexp.New(`^[A-Za-z0-9._~+@,=:()/%-]*$`)
	fileChars  = lazyregexp.New(`^[A-Za-z0-9._~+@,=:()/%\x{00C0}-\x{1FFF}\x{2C00}-\x{2FFF}\x{3040}-\x{D7A3}-]*$`)
	unreserved = lazyregexp.New(`^[A-Za-z0-9._~-]$`)
)

// ParseRepository brings an address to its canonical form, or says which form to
// use. It accepts nothing whose meaning two parsers could disagree about. Its
// errors complete the sentence "the address …" and quote nothing that may be a
// password.
func ParseRepository(raw string) (Repository, error) {
	switch {
	case raw == "":
		return Repository{}, errors.New("is missing")
	case !utf8.ValidString(raw):
		return Repository{}, errForm
	case utf8.RuneCountInString(raw) > maxRepository:
		return Repository{}, fmt.Errorf("has more than %d characters", maxRepository)
	case blank.MatchString(raw):
		return Repository{}, errors.New("has a blank or a control character in it")
	case credentials.MatchString(raw):
		return Repository{}, errCredentials
	case strings.ContainsAny(raw, "?#"):
		return Repository{}, errors.New("has a query or a fragment; leave it out")
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		scp := scpForm.FindStringSubmatch(raw)
		if scp == nil {
			return Repository{}, errForm
		}
		r := Repository{Scheme: "ssh"}
		if err := r.setAuthority(scp[1] + "@" + scp[2]); err != nil {
			return Repository{}, err
		}
		err := r.setPath("/" + strings.TrimPrefix(scp[3], "/"))
		r.DialPath = strings.TrimSuffix(scp[3], "/")
		return r, err
	}
	r := Repository{Scheme: strings.ToLower(scheme)}
	if r.Scheme != "https" && r.Scheme != "ssh" && r.Scheme != "file" {
		return Repository{}, errForm
	}
	slash := strings.IndexByte(rest, '/')
	if slash < 0 {
		return Repository{}, errNoPath
	}
	if err := r.setAuthority(rest[:slash]); err != nil {
		return Repository{}, err
	}
	err := r.setPath(rest[slash:])
	return r, err
}

// ParsePattern is ParseRepository for an address whose path may hold "*".
func ParsePattern(raw string) (Repository, error) {
	const stand = "~.star.~" // takes the place of "*" while the rest is judged; no host or user can hold it
	if strings.Contains(raw, stand) {
		return Repository{}, errPathCharacter
	}
	if _, rest, _ := strings.Cut(raw, "://"); strings.Contains(strings.SplitN(rest, "/", 2)[0], "*") {
		return Repository{}, errors.New("has a wildcard before its path; wildcards are for the path only")
	}
	r, err := ParseRepository(strings.ReplaceAll(raw, "*", stand))
	if err != nil {
		return Repository{}, err
	}
	r.Path, r.DialPath = strings.ReplaceAll(r.Path, stand, "*"), strings.ReplaceAll(r.DialPath, stand, "*")
	return r, nil
}

// setAuthority reads [USER@]HOST[:PORT].
func (r *Repository) setAuthority(authority string) error {
	if r.Scheme == "file" {
		if authority != "" {
			return errors.New("names a host; a file's address has none: write file:///PATH")
		}
		return nil
	}
	user, host, found := strings.Cut(authority, "@")
	if !found {
		user, host = "", authority
	}
	if found && !userName.MatchString(user) {
		return errors.New("has a user name before its host that is none; write USER@HOST, or leave the user out")
	}
	if r.Scheme == "ssh" {
		r.User = "git" // as the agent signs in where no user is named
		if user != "" {
			r.User = user
		}
	}
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		port := host[i+1:]
		host = host[:i]
		if n, err := strconv.Atoi(port); err != nil || n > 65535 || !portNumber.MatchString(port) {
			return errors.New("has a port that is none; write a number from 1 to 65535 without leading zeros, or leave the port out")
		}
		if r.Scheme == "https" && port != "443" || r.Scheme == "ssh" && port != "22" {
			r.Port = port
		}
	}
	r.Host = lower(host)
	return checkHost(r.Host)
}

// checkHost refuses a host that has another, more usual spelling.
func checkHost(host string) error {
	switch {
	case strings.HasPrefix(host, "["):
		ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if err != nil || !hostIPv6.MatchString(host) || ip.String() != strings.Trim(host, "[]") || hasIPv4(ip) {
			return errors.New("has a malformed IPv6 address; write it in its shortest form, such as [2001:db8::1]")
		}
	case hostNumber.MatchString(host):
		if ip, err := netip.ParseAddr(host); err != nil || ip.String() != host {
			return errors.New("has a malformed IPv4 address; write four decimal numbers, such as 192.0.2.1")
		}
	case hostName.MatchString(strings.TrimSuffix(host, ".")) && strings.HasSuffix(host, "."):
		return fmt.Errorf("has a dot after its host; write %s", strings.TrimSuffix(host, "."))
	case strings.ContainsFunc(host, func(c rune) bool { return c >= utf8.RuneSelf }):
		return errors.New("has a host that is not in ASCII; write the host as xn--…")
	case !hostName.MatchString(host):
		return errors.New("has a malformed host name")
	}
	return nil
}

// hasIPv4 reports whether the address is ::/96 but for ::1: an IPv4 address in
// an obsolete form, which programs write in two ways.
func hasIPv4(ip netip.Addr) bool {
	bytes := ip.As16()
	return [12]byte(bytes[:12]) == [12]byte{} && ip != netip.IPv6Loopback()
}

// setPath checks the path. %20 is the one escape accepted, because servers put
// blanks into project names; any other could hide a separator or a dot.
func (r *Repository) setPath(path string) error {
	path = strings.TrimSuffix(path, "/")
	r.DialPath = path
	if r.Scheme == "ssh" && strings.HasPrefix(path, "/~/") {
		path = path[2:] // from the user's home directory, as USER@HOST:PATH is
	}
	allowed := pathChars
	if r.Scheme == "file" {
		allowed = fileChars
	}
	for _, escape := range encoded.FindAllStringSubmatch(path, -1) {
		if escape[0] == "%20" {
			continue
		}
		code, err := strconv.ParseUint(escape[1], 16, 8)
		if plain := string(rune(code)); err == nil && unreserved.MatchString(plain) {
			return fmt.Errorf("has the escape %s in its path; write %s", escape[0], plain)
		}
		return fmt.Errorf("has the escape %s in its path; only %%20 is accepted", escape[0])
	}
	switch {
	case path == "":
		return errNoPath
	case !allowed.MatchString(path) || !norm.NFC.IsNormalString(path):
		return errPathCharacter
	}
	var kept []string
	for _, segment := range strings.Split(path, "/")[1:] {
		switch {
		case segment == "..":
			return errors.New(`has a ".." segment in its path; write the path without it`)
		case strings.HasPrefix(segment, "-"):
			return errors.New(`has a segment in its path that begins with "-"`)
		case segment != "" && segment != ".":
			kept = append(kept, segment)
		}
	}
	usual := "/" + strings.Join(kept, "/")
	if usual == "/" {
		return errNoPath
	}
	if usual != path {
		r.Path = usual
		return fmt.Errorf(`has an empty or "." segment in its path; write %s`, r)
	}
	r.Path = gitSuffix.ReplaceAllString(path, "")
	if last := r.Path[strings.LastIndexByte(r.Path, '/')+1:]; last == "" || last == "." || last == ".." {
		return errNoPath
	}
	return nil
}

// lower is strings.ToLower for ASCII alone, as the database does it.
func lower(s string) string {
	return strings.Map(func(c rune) rune {
		if 'A' <= c && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return c
	}, s)
}

// Template names a template however it is addressed: one that can be fetched
// from an address can usually be fetched by another protocol, for another user,
// by another port and in capitals as well. Approval rules compare this, so that
// none of these gets past a rule.
func (r Repository) Template(path string) string {
	return lower(r.Host+r.Path) + " " + Path(path)
}

// Path is the canonical form of a directory in a repository: "" for its root.
func Path(path string) string {
	var kept []string
	for segment := range strings.SplitSeq(path, "/") {
		if segment != "" && segment != "." {
			kept = append(kept, segment)
		}
	}
	return strings.Join(kept, "/")
}
