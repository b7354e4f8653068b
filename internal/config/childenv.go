package config

import (
	"os"
	"slices"
	"strings"
)

// neverPassed is, in words, what forbidden refuses.
const neverPassed = "TENDRIL_*, TRELLIS_*, SUPABASE_*, PG*, DATABASE_URL, LD_* or TF_* (TF_CLI_CONFIG_FILE may be named)"

// engineConfig is the one TF_ variable that an operator may pass on, by its
// full name: it points to provider mirrors and credentials helpers.
const engineConfig = "TF_CLI_CONFIG_FILE"

// usual lists the variables that a child gets without being asked for: what
// programs need to run and to reach the network.
func usual() []string {
	return []string{
		"PATH", "HOME", "USER", "LANG", "LC_*", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	}
}

// cloud lists those that sign in to a cloud. A child gets them where
// credentials are not told apart by workspace.
func cloud() []string {
	return []string{
		"AWS_*", "AZURE_*", "ARM_*", "GOOGLE_*", "CLOUDSDK_*", "KUBE*", "KUBERNETES_*",
		"DIGITALOCEAN_*", "HCLOUD_TOKEN", "PROXMOX_*", "PM_*", "OS_*", "VSPHERE_*", "VAULT_*", "CLOUDFLARE_*",
	}
}

// forbidden reports whether a variable never reaches a child, whatever pass_env
// says: our own and the database's credentials, what would change Terraform's
// behaviour behind our back, and what would load code into it.
func forbidden(name string) bool {
	return name == "DATABASE_URL" || slices.ContainsFunc(
		[]string{"TENDRIL_", "TRELLIS_", "SUPABASE_", "PG", "LD_", "TF_"},
		func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// passable reports whether a pattern of pass_env can match anything that may
// be passed on.
func passable(pattern string) bool {
	if !envPattern(pattern) {
		return false
	}
	return pattern == engineConfig || !forbidden(strings.TrimSuffix(pattern, "*"))
}

// matches reports whether a variable's name fits a pattern, in which * may
// stand at the end.
func matches(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// ChildEnv returns, of an environment such as os.Environ gives, what may reach
// a provision's process and Terraform.
func (c Config) ChildEnv(environ []string) []string {
	allowed := slices.Concat(usual(), c.Run.PassEnv)
	if len(c.Credentials) == 0 {
		allowed = append(allowed, cloud()...)
	}
	return pass(environ, allowed)
}

// DefaultCredentials returns, of an environment, what runs get whose workspaces
// no credentials are configured for, beside ChildEnv.
func (c Config) DefaultCredentials(environ []string) []string {
	if len(c.Credentials) == 0 || !c.CredentialsDefault {
		return nil
	}
	return pass(environ, cloud())
}

// pass returns the allowed part of an environment.
func pass(environ, allowed []string) []string {
	var passed []string
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		switch {
		case !ok || name == "":
		case name == engineConfig:
			// Terraform complains at each step of a file that is not there.
			if _, err := os.Stat(value); err == nil && slices.Contains(allowed, engineConfig) {
				passed = append(passed, entry)
			}
		case forbidden(name):
		case slices.ContainsFunc(allowed, func(pattern string) bool { return matches(pattern, name) }):
			passed = append(passed, entry)
		}
	}
	return passed
}
