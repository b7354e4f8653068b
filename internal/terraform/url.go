package terraform

import "net/url"

// redact takes the user information out of a mirror's address.
func redact(address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return "the mirror"
	}
	parsed.User = nil
	return parsed.String()
}
