package source

import (
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

func TestPermit(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		patterns  []string
		allowFile bool
		repo      string
		want      bool
	}{
		"exact":                      {[]string{"https://github.com/acme/app"}, false, "https://github.com/acme/app", true},
		"suffix in the repo":         {[]string{"https://github.com/acme/app"}, false, "https://github.com/acme/app.git", true},
		"suffix in the pattern":      {[]string{"https://github.com/acme/app.git"}, false, "https://github.com/acme/app", true},
		"trailing slash":             {[]string{"https://github.com/acme/app"}, false, "https://github.com/acme/app/", true},
		"one segment":                {[]string{"https://github.com/acme/*"}, false, "https://github.com/acme/app.git", true},
		"one segment is not two":     {[]string{"https://github.com/acme/*"}, false, "https://github.com/acme/group/app", false},
		"one segment is not none":    {[]string{"https://github.com/acme/*"}, false, "https://github.com/acme", false},
		"within a segment":           {[]string{"https://github.com/acme/tf-*"}, false, "https://github.com/acme/tf-net.git", true},
		"within a segment, other":    {[]string{"https://github.com/acme/tf-*"}, false, "https://github.com/acme/app", false},
		"any depth":                  {[]string{"https://git.example/acme/**"}, false, "https://git.example/acme/a/b/c", true},
		"any depth, none":            {[]string{"https://git.example/acme/**/app"}, false, "https://git.example/acme/app", true},
		"any depth, in between":      {[]string{"https://git.example/**/x/**/app"}, false, "https://git.example/a/x/b/c/app", true},
		"any depth, missing":         {[]string{"https://git.example/**/x/**/app"}, false, "https://git.example/a/b/c/app", false},
		"whole host":                 {[]string{"https://git.example/**"}, false, "https://git.example/a", true},
		"host case":                  {[]string{"https://GitHub.com/acme/*"}, false, "HTTPS://github.COM/acme/app", true},
		"path case":                  {[]string{"https://github.com/acme/*"}, false, "https://github.com/Acme/app", false},
		"own port":                   {[]string{"https://github.com/acme/*"}, false, "https://github.com:443/acme/app", true},
		"other port":                 {[]string{"https://github.com/acme/*"}, false, "https://github.com:8443/acme/app", false},
		"port allowed":               {[]string{"https://github.com:8443/acme/*"}, false, "https://github.com:8443/acme/app", true},
		"IPv6":                       {[]string{"https://[::1]:8443/**"}, false, "https://[::1]:8443/acme/app", true},
		"blank in a name":            {[]string{"https://dev.example/My%20Project/**"}, false, "https://dev.example/My%20Project/_git/app", true},
		"scp pattern, ssh repo":      {[]string{"git@github.com:acme/*"}, false, "ssh://git@github.com/acme/app.git", true},
		"ssh pattern, scp repo":      {[]string{"ssh://git@github.com/acme/*"}, false, "git@github.com:acme/app.git", true},
		"ssh other user":             {[]string{"ssh://git@github.com/acme/*"}, false, "root@github.com:acme/app.git", false},
		"ssh is not https":           {[]string{"https://github.com/acme/*"}, false, "git@github.com:acme/app.git", false},
		"ssh own port":               {[]string{"ssh://git@github.com/acme/*"}, false, "ssh://git@github.com:22/acme/app", true},
		"file":                       {[]string{"file:///srv/git/*"}, true, "file:///srv/git/app", true},
		"file not allowed":           {[]string{"file:///srv/git/*"}, false, "file:///srv/git/app", false},
		"file without a pattern":     {[]string{"https://github.com/**"}, true, "file:///srv/git/app", false},
		"empty list":                 {nil, true, "https://github.com/acme/app", false},
		"longer host":                {[]string{"https://github.com/**"}, false, "https://github.com.evil.com/acme/app", false},
		"host as user":               {[]string{"https://github.com/**"}, false, "https://github.com@evil.com/acme/app", false},
		"host as user and password":  {[]string{"https://github.com/**"}, false, "https://github.com:443@evil.com/acme/app", false},
		"credentials":                {[]string{"https://github.com/**"}, false, "https://bob:secret@github.com/acme/app", false},
		"user":                       {[]string{"https://github.com/**"}, false, "https://bob@github.com/acme/app", false},
		"ssh password":               {[]string{"ssh://git@github.com/**"}, false, "ssh://git:secret@github.com/acme/app", false},
		"dots":                       {[]string{"https://github.com/acme/**"}, false, "https://github.com/acme/../evil/x", false},
		"dots at the end":            {[]string{"https://github.com/acme/**"}, false, "https://github.com/acme/..", false},
		"dots in scp":                {[]string{"git@github.com:acme/**"}, false, "git@github.com:acme/../evil/x", false},
		"encoded dots":               {[]string{"https://github.com/acme/**"}, false, "https://github.com/acme/%2e%2e/evil/x", false},
		"encoded slash":              {[]string{"https://github.com/acme/*"}, false, "https://github.com/acme/a%2f..%2fx", false},
		"encoded percent":            {[]string{"https://github.com/acme/*"}, false, "https://github.com/acme/a%252e", false},
		"encoded host":               {[]string{"https://github.com/**"}, false, "https://github%2ecom/acme/app", false},
		"empty segment":              {[]string{"https://github.com/acme/*"}, false, "https://github.com//acme/app", false},
		"backslash":                  {[]string{"https://github.com/**"}, false, `https://github.com\@evil.com/app`, false},
		"query":                      {[]string{"https://github.com/**"}, false, "https://github.com/acme/app?x=/", false},
		"fragment":                   {[]string{"https://github.com/**"}, false, "https://github.com/acme/app#x", false},
		"star in the repo":           {[]string{"https://github.com/acme/app"}, false, "https://github.com/acme/*", false},
		"no path":                    {[]string{"https://github.com/**"}, false, "https://github.com", false},
		"root":                       {[]string{"https://github.com/**"}, false, "https://github.com/", false},
		"http":                       {[]string{"https://github.com/**"}, false, "http://github.com/acme/app", false},
		"git":                        {[]string{"https://github.com/**"}, false, "git://github.com/acme/app", false},
		"ext":                        {[]string{"https://github.com/**"}, true, "ext::sh -c id", false},
		"ext, disguised":             {[]string{"https://github.com/**"}, true, "ext::https://github.com/acme/app", false},
		"local path":                 {[]string{"file:///**"}, true, "/srv/git/app", false},
		"relative path":              {[]string{"file:///**"}, true, "../app", false},
		"file with host":             {[]string{"file:///**"}, true, "file://evil/srv/git", false},
		"file with dots":             {[]string{"file:///srv/git/**"}, true, "file:///srv/git/../../etc", false},
		"option":                     {[]string{"https://github.com/**"}, false, "--upload-pack=id", false},
		"option as host":             {[]string{"ssh://git@github.com/**"}, false, "ssh://-oProxyCommand=id/x", false},
		"option as scp host":         {[]string{"ssh://git@github.com/**"}, false, "git@-oProxyCommand=id:x", false},
		"option as path":             {[]string{"git@github.com:**"}, false, "git@github.com:-x", false},
		"new line":                   {[]string{"https://github.com/**"}, false, "https://github.com/acme/app\nx", false},
		"nul":                        {[]string{"https://github.com/**"}, false, "https://github.com/acme/app\x00", false},
		"quote":                      {[]string{"git@github.com:**"}, false, "git@github.com:a'b", false},
		"trailing dot is other host": {[]string{"https://github.com/**"}, false, "https://github.com./acme/app", false},
		"empty":                      {[]string{"https://github.com/**"}, false, "", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list, err := ParseAllowlist(tt.patterns, tt.allowFile)
			if err != nil {
				t.Fatal(err)
			}
			err = list.Permit(tt.repo)
			if got := err == nil; got != tt.want {
				t.Fatalf("Permit(%q) with %q = %v, want allowed: %v", tt.repo, tt.patterns, err, tt.want)
			}
			if err == nil {
				return
			}
			f := provision.AsFailure(err)
			if f.Code != provision.CodeRepoRefused {
				t.Errorf("Permit(%q): code = %q, want %q", tt.repo, f.Code, provision.CodeRepoRefused)
			}
			if !strings.Contains(f.Message, "[policy]") {
				t.Errorf("Permit(%q) = %q, want the setting named", tt.repo, f.Message)
			}
			if strings.Contains(f.Message, "secret") {
				t.Errorf("Permit(%q) = %q, shows the password", tt.repo, f.Message)
			}
		})
	}
}

func TestParseAllowlistRefuses(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"", "*", "**", "https://*/acme", "https://*.example.com/**", "https://github.com/a**",
		"http://github.com/**", "https://github.com/../**", "git@*:acme/*", "https://bob:secret@github.com/**",
		"https://github.com/acme/[ab]",
	} {
		_, err := ParseAllowlist([]string{raw}, true)
		if err == nil {
			t.Errorf("ParseAllowlist(%q) = nil error, want one", raw)
			continue
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("ParseAllowlist(%q) = %v, shows the password", raw, err)
		}
	}
}

func TestAddressSpellingsShareAMirror(t *testing.T) {
	t.Parallel()
	for _, same := range [][]string{
		{"https://github.com/acme/app", "HTTPS://GitHub.com:443/acme/app.git", "https://github.com/acme/app/"},
		{"git@github.com:acme/app.git", "ssh://git@github.com/acme/app", "ssh://git@github.com:22/acme/app.git"},
	} {
		first, err := parseAddress(same[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range same[1:] {
			a, err := parseAddress(other)
			if err != nil {
				t.Fatal(err)
			}
			if a.key() != first.key() {
				t.Errorf("parseAddress(%q) = %s, want %s as for %q", other, a, first, same[0])
			}
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"https://bob:pw@github.com/acme/app":   "https://…@github.com/acme/app",
		"https://bob:p/w@github.com/acme/app":  "https://…@github.com/acme/app",
		"https://bob:p@w@github.com/acme/app":  "https://…@github.com/acme/app",
		"https://github.com/acme/app?token=pw": "https://github.com/acme/app…",
		"bob:pw@github.com:acme/app":           "…@github.com:acme/app",
		"git@github.com:acme/app":              "git@github.com:acme/app",
		"https://github.com/\x1b[31macme":      "https://github.com/�[31macme",
	} {
		if got := redact(raw); got != want {
			t.Errorf("redact(%q) = %q, want %q", raw, got, want)
		}
	}
}
