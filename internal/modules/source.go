package modules

import (
	"regexp"
	"strings"
)

// Kind is how a module is fetched.
type Kind string

// The kinds. What is not understood is Unknown, and refused.
const (
	Local    Kind = "local" // a directory relative to the module that names it
	Git      Kind = "git"
	Registry Kind = "registry"
	Archive  Kind = "archive" // over HTTP
	S3       Kind = "s3"
	GCS      Kind = "gcs"
	Mercury  Kind = "hg"
	OCI      Kind = "oci"
	Unknown  Kind = ""
)

// Source is a module's source taken apart.
type Source struct {
	Kind Kind
	// Address is a URL without query and directory; HOST/NAMESPACE/NAME/PROVIDER
	// for a module of a registry; the path for a local one.
	Address string
}

// registryHosts are the engines' registries, for sources that name none.
var registryHosts = map[string]string{"terraform": "registry.terraform.io", "tofu": "registry.opentofu.org"}

// fetchers are what may stand before "::".
var fetchers = map[string]Kind{"git": Git, "hg": Mercury, "s3": S3, "gcs": GCS, "http": Archive, "https": Archive}

// ParseSource reads a source as an engine of that kind does.
func ParseSource(text, engine string) Source {
	if IsLocal(text) {
		return Source{Local, text}
	}
	if address, ok := registryAddress(text, engine); ok {
		return Source{Registry, address}
	}
	kind := Unknown
	if forced, rest, ok := strings.Cut(text, "::"); ok {
		if kind, ok = fetchers[forced]; !ok {
			return Source{Unknown, text}
		}
		text = rest
	}
	text, _, _ = strings.Cut(text, "?")
	text = withoutSubdirectory(text)
	scheme, _, hasScheme := strings.Cut(text, "://")
	switch {
	case kind != Unknown && hasScheme:
	case scheme == "oci" && hasScheme:
		return Source{OCI, "https" + strings.TrimPrefix(text, scheme)}
	case hasScheme && (scheme == "https" || scheme == "http"):
		kind = Archive
	case hasScheme:
		return Source{Unknown, text}
	case scp(text) && (kind == Unknown || kind == Git):
		kind = Git
	default:
		return shorthand(text, kind)
	}
	return Source{kind, text}
}

// IsLocal reports whether a source is a directory relative to the module that
// names it.
func IsLocal(text string) bool {
	for _, prefix := range []string{"./", "../", `.\`, `..\`} {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return text == "." || text == ".."
}

// gitHosts are those whose repositories are named without a scheme.
var gitHosts = []string{"github.com", "bitbucket.org", "gitlab.com"}

// shorthand reads HOST/OWNER/REPOSITORY[/DIRECTORY].
func shorthand(text string, kind Kind) Source {
	parts := strings.SplitN(text, "/", 4)
	for _, host := range gitHosts {
		if (kind == Unknown || kind == Git) && len(parts) >= 3 && parts[0] == host {
			return Source{Git, "https://" + strings.Join(parts[:3], "/")}
		}
	}
	return Source{Unknown, text}
}

func scp(text string) bool {
	user, rest, ok := strings.Cut(text, "@")
	host, path, colon := strings.Cut(rest, ":")
	return ok && colon && user != "" && host != "" && path != "" && !strings.ContainsAny(user+host, "/")
}

// withoutSubdirectory cuts //DIRECTORY off, which is behind any ://.
func withoutSubdirectory(text string) string {
	start := 0
	if i := strings.Index(text, "://"); i >= 0 {
		start = i + len("://")
	}
	if i := strings.Index(text[start:], "//"); i >= 0 {
		return text[:start+i]
	}
	return text
}

var (
	registryName = regexp.MustCompile(`^[0-9A-Za-z](?:[0-9A-Za-z_-]*[0-9A-Za-z])?$`) // and no longer than maxRegistryName
	registryHost = regexp.MustCompile(`^[0-9A-Za-z](?:[0-9A-Za-z.-]*[0-9A-Za-z])?(?::[0-9]+)?$`)
)

const maxRegistryName = 64

// registryAddress reads [HOST/]NAMESPACE/NAME/PROVIDER[//DIRECTORY].
func registryAddress(text, engine string) (address string, ok bool) {
	parts := strings.Split(withoutSubdirectory(text), "/")
	if len(parts) == 3 {
		parts = append([]string{registryHosts[engine]}, parts...)
	}
	if len(parts) != 4 || !registryHost.MatchString(parts[0]) || !strings.ContainsAny(parts[0], ".:") && parts[0] != "localhost" {
		return "", false
	}
	for _, host := range gitHosts[:2] { // as the engines do
		if strings.EqualFold(parts[0], host) {
			return "", false
		}
	}
	for _, part := range parts[1:] {
		if len(part) > maxRegistryName || !registryName.MatchString(part) {
			return "", false
		}
	}
	parts[0] = strings.ToLower(parts[0])
	return strings.Join(parts, "/"), true
}
