//go:build linux

package main

import (
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tendril-run/tendril/internal/controlplane/site"
)

// issuerFlags say who people are for `trellis serve`.
type issuerFlags struct {
	oidcSecretFile, supabaseKeyFile string
}

const issuerHelp = `People sign in at an issuer of identities, and come back to
PUBLIC-URL/signin/callback, which must be registered there:

  OpenID Connect   --oidc-issuer, --oidc-client-id, --oidc-client-secret-file
                   (none for a public client). JWTs that programs send as
                   Bearer count when they are for --oidc-audience.
  Supabase         --supabase-url, --supabase-key-file (the publishable or anon
                   key), --supabase-provider (such as github or google). Bearer
                   JWTs need a project with asymmetric signing keys.

People belong to no organisation until an admin invites them and they accept.
--first-admin EMAIL names who becomes admin of the first organisation: as long as
no admin has ever signed in, and only if the issuer says that the address is
verified. Without an issuer, "trellis link" prints one-time links.`

func (f *issuerFlags) add(flags *pflag.FlagSet, o *site.Options) {
	flags.StringVar(&o.PublicURL, "public-url", "", "how people and agents reach this server, such as https://tendril.example; cookies are for https only then")
	flags.StringVar(&o.OIDC.Issuer, "oidc-issuer", "", "URL of the OpenID Connect issuer at which people sign in, exactly as its tokens have it")
	flags.StringVar(&o.OIDC.ClientID, "oidc-client-id", "", "this server's id there")
	flags.StringVar(&f.oidcSecretFile, "oidc-client-secret-file", "", "file with this server's secret there; default: none, as a public client")
	flags.StringVar(&o.OIDC.Audience, "oidc-audience", "", "whom JWTs that programs send must be for; default: the client id")
	flags.StringVar(&o.Supabase.URL, "supabase-url", "", "URL of the Supabase project whose users sign in, https://PROJECT.supabase.co")
	flags.StringVar(&f.supabaseKeyFile, "supabase-key-file", "", "file with the project's publishable (anon) key")
	flags.StringVar(&o.Supabase.Provider, "supabase-provider", "", "how browsers sign in there, such as github; default: browsers do not")
	flags.StringVar(&o.FirstAdmin, "first-admin", "", "e-mail address of who becomes admin while no admin has ever signed in")
}

// apply checks what flags say, and puts it into the options.
func (f *issuerFlags) apply(o *site.Options) (err error) {
	o.PublicURL, o.Supabase.URL = strings.TrimRight(o.PublicURL, "/"), strings.TrimRight(o.Supabase.URL, "/")
	browsers := o.OIDC.ClientID != "" || o.Supabase.Provider != ""
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{!isWebURL(o.PublicURL) && o.PublicURL != "", "--public-url must be a URL, such as https://tendril.example"},
		{hasPath(o.PublicURL), "--public-url must have no path: this server answers at the root of its host"},
		{o.OIDC.Issuer != "" && o.Supabase.URL != "", "--oidc-issuer and --supabase-url: give one of them"},
		{!isWebURL(o.OIDC.Issuer) && o.OIDC.Issuer != "", "--oidc-issuer must be a URL, such as https://accounts.example"},
		{!isWebURL(o.Supabase.URL) && o.Supabase.URL != "", "--supabase-url must be a URL, such as https://PROJECT.supabase.co"},
		{o.OIDC.Issuer == "" && (o.OIDC.ClientID != "" || o.OIDC.Audience != "" || f.oidcSecretFile != ""), "--oidc-issuer is missing"},
		{o.OIDC.Issuer != "" && o.OIDC.ClientID == "" && o.OIDC.Audience == "", "--oidc-client-id is missing (or --oidc-audience, where only programs come)"},
		{o.Supabase.URL == "" && (o.Supabase.Provider != "" || f.supabaseKeyFile != ""), "--supabase-url is missing"},
		{o.Supabase.Provider != "" && f.supabaseKeyFile == "", "--supabase-key-file is missing: browsers sign in with it"},
		{browsers && o.PublicURL == "", "--public-url is missing: where browsers come back to after signing in"},
		{o.FirstAdmin != "" && !browsers, "--first-admin needs an issuer that browsers sign in at: --oidc-client-id or --supabase-provider"},
		{o.FirstAdmin != "" && !strings.Contains(o.FirstAdmin, "@"), "--first-admin must be an e-mail address"},
	} {
		if rule.broken {
			return &usageError{rule.says}
		}
	}
	if o.OIDC.ClientSecret, err = secretIn(f.oidcSecretFile, "the client's secret"); err == nil {
		o.Supabase.Key, err = secretIn(f.supabaseKeyFile, "the project's key")
	}
	return err
}

// secretIn reads a secret from a file; "" where there is none.
func secretIn(file, what string) (string, error) {
	if file == "" {
		return "", nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", what, err)
	}
	secret := strings.TrimSpace(string(content))
	if secret == "" {
		return "", fmt.Errorf("the file of %s, %s, is empty", what, file)
	}
	return secret, nil
}

func hasPath(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Path != ""
}

func isWebURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.RawQuery == "" && u.Fragment == "" && u.User == nil
}
