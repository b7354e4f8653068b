package modules

import (
	"testing"

	"github.com/tendril-run/tendril/internal/job"
)

// Sources as the engines document them, and as they try to be taken for others.
func TestParseSource(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Source{
		"./net":                               {Local, "./net"},
		"../net":                              {Local, "../net"},
		"acme/net/aws":                        {Registry, "registry.terraform.io/acme/net/aws"},
		"acme/net/aws//modules/x":             {Registry, "registry.terraform.io/acme/net/aws"},
		"App.Terraform.io/acme/net/aws":       {Registry, "app.terraform.io/acme/net/aws"},
		"localhost:8080/acme/net/aws":         {Registry, "localhost:8080/acme/net/aws"},
		"github.com/acme/net":                 {Git, "https://github.com/acme/net"},
		"github.com/acme/net//sub?ref=v1":     {Git, "https://github.com/acme/net"},
		"github.com/acme/net/sub":             {Git, "https://github.com/acme/net"},
		"git::github.com/acme/net":            {Git, "https://github.com/acme/net"},
		"git@github.com:acme/net.git//x":      {Git, "git@github.com:acme/net.git"},
		"git::git@github.com:acme/net.git":    {Git, "git@github.com:acme/net.git"},
		"git::https://a.b/c.git//d?ref=v1":    {Git, "https://a.b/c.git"},
		"git::ssh://git@a.b:22/c.git":         {Git, "ssh://git@a.b:22/c.git"},
		"git::file:///srv/c":                  {Git, "file:///srv/c"},
		"https://a.b/c.zip//d?checksum=md5:x": {Archive, "https://a.b/c.zip"},
		"http::https://a.b/c.zip":             {Archive, "https://a.b/c.zip"},
		"https://github.com/acme/net":         {Archive, "https://github.com/acme/net"},
		"s3::https://s3.amazonaws.com/b/c":    {S3, "https://s3.amazonaws.com/b/c"},
		"gcs::https://a.b/c":                  {GCS, "https://a.b/c"},
		"hg::https://a.b/c":                   {Mercury, "https://a.b/c"},
		"oci://a.b/c?tag=1":                   {OCI, "https://a.b/c"},
		"/srv/net":                            {Unknown, "/srv/net"},
		"file:///srv/net":                     {Unknown, "file:///srv/net"},
		"ext::sh -c id":                       {Unknown, "ext::sh -c id"},
		"git::ext::sh -c id":                  {Unknown, "ext::sh -c id"},
		"bucket.s3.amazonaws.com/c":           {Unknown, "bucket.s3.amazonaws.com/c"},
		"net":                                 {Unknown, "net"},
		"":                                    {Unknown, ""},
	} {
		if got := ParseSource(text, "terraform"); got != want {
			t.Errorf("ParseSource(%q) = %+v, want %+v", text, got, want)
		}
	}
	if got := ParseSource("acme/net/aws", "tofu").Address; got != "registry.opentofu.org/acme/net/aws" {
		t.Errorf("ParseSource() for tofu = %s, want its registry", got)
	}
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	policy := job.Policy{
		Repos: []string{"https://github.com/acme/**", "git@git.example:acme/*"},
		Modules: []string{"https://github.com/other/net", "registry.terraform.io/acme/*/*", "archive::https://files.example/net/**",
			"s3::https://s3.amazonaws.com/acme/**", "oci://registry.example/acme/*"},
	}
	hosts := []job.GitHost{{Host: "token.example", Repos: []string{"https://token.example/mods/*"}}}
	p, err := NewPolicy(policy, hosts)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"./net":                                true,
		"github.com/acme/net":                  true,
		"git::ssh://git@github.com/acme/net":   true, // the same repository
		"git::https://git.example/acme/net":    true,
		"git::https://git.example:8/acme/net":  false,
		"git::ssh://root@github.com/acme/net":  false,
		"git::https://token.example/mods/a":    true,
		"git::https://github.com/other/net":    true,
		"git::https://github.com/other/net2":   false,
		"https://github.com/acme/net.zip":      false, // no repository
		"hg::https://github.com/acme/net":      false,
		"acme/net/aws":                         true,
		"evil/net/aws":                         false,
		"evil.example/acme/net/aws":            false,
		"https://files.example/net/1.zip":      true,
		"git::https://files.example/net/1":     false, // an archive's pattern is for archives
		"s3::https://s3.amazonaws.com/acme/x":  true,
		"s3::https://s3.amazonaws.com/evil/x":  false,
		"oci://registry.example/acme/net":      true,
		"oci://registry.example/evil/net":      false,
		"/srv/net":                             false,
		"git::https://x:y@github.com/acme/net": false,
		"git::https://github.com/acme/../evil": false,
		"git::file:///srv/acme":                false,
	} {
		if got := p.Permits(ParseSource(text, "terraform")); got != want {
			t.Errorf("Permits(%q) = %v, want %v", text, got, want)
		}
	}
	policy.Modules = []string{"**"}
	if p, err = NewPolicy(policy, nil); err != nil || !p.Permits(ParseSource("hg::https://x/y", "terraform")) || !p.Permits(ParseSource("x", "terraform")) {
		t.Errorf("NewPolicy(**) = %+v, %v, want everything allowed", p, err)
	}
}

func TestPolicyRefusesPatterns(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"*", "acme/net", "https://*/x", "archive::http://x/y", "s3::x", "https://bob:secret@x/y", "*.example/acme/net/aws"} {
		if p, err := NewPolicy(job.Policy{Modules: []string{pattern}}, nil); err == nil {
			t.Errorf("NewPolicy(%q) = %+v, want an error", pattern, p)
		}
	}
}

// What a message proposes must do.
func TestPatternAllowsItsSource(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"acme/net/aws", "git::https://a.b/c", "git@a.b:c/d", "https://a.b/c.zip", "s3::https://a.b/c", "gcs::https://a.b/c", "hg::https://a.b/c", "oci://a.b/c", "/srv/x"} {
		s := ParseSource(text, "tofu")
		p, err := NewPolicy(job.Policy{Modules: []string{Pattern(s)}}, nil)
		if err != nil || !p.Permits(s) {
			t.Errorf("Pattern(%q) = %q, which does not allow it (%v)", text, Pattern(s), err)
		}
	}
}
