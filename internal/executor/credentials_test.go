package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// Two workspaces of one agent at once: each engine has its own credentials, and
// nothing of the other's.
func TestCredentialsOfTwoWorkspaces(t *testing.T) {
	t.Parallel()
	names := []string{"prod", "dev"}
	var ends []func()
	meet := t.TempDir()
	for i, name := range names {
		s := newSite(t)
		other := names[1-i]
		s.job.Assignment.WorkspaceID, s.job.Assignment.Workspace = uuid.New(), name
		s.job.Credentials = job.Credentials{
			Env:   map[string]string{"AWS_SECRET_ACCESS_KEY": "secret-of-" + name, "AWS_REGION": "region-of-" + name},
			Files: map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": "content-of-the-file-of-" + name},
		}
		s.template(map[string]string{"main.tf": fmt.Sprintf(`
resource "terraform_data" "a" {
  provisioner "local-exec" {
    command = <<-EOT
      touch %[1]s/%[2]s; until test -e %[1]s/%[3]s; do sleep 0.05; done
      env; cat "$GOOGLE_APPLICATION_CREDENTIALS"; echo; stat -c "mode %%a" "$GOOGLE_APPLICATION_CREDENTIALS"
      test "$AWS_SECRET_ACCESS_KEY" = "secret""-of-%[2]s" && echo right
      cp "$GOOGLE_APPLICATION_CREDENTIALS" %[1]s/copy-%[2]s
    EOT
  }
}
`, meet, name, other)}, nil)
		c := s.start()
		ends = append(ends, func() {
			got := c.end()
			wantEnd(t, got, provision.Success, "")
			log := c.text()
			for _, want := range []string{"AWS_SECRET_ACCESS_KEY=***", "AWS_REGION=region-of-" + name, "right\n", "mode 600"} {
				if !strings.Contains(log, want) {
					t.Errorf("the log of %s lacks %q", name, want)
				}
			}
			for _, unwanted := range []string{"secret-of-", "-of-" + other, "content-of"} {
				if strings.Contains(log, unwanted) {
					t.Errorf("the log of %s holds %q", name, unwanted)
				}
			}
			if content, err := os.ReadFile(filepath.Join(meet, "copy-"+name)); err != nil || string(content) != "content-of-the-file-of-"+name {
				t.Errorf("the file of %s was %q, %v", name, content, err)
			}
			holdsNone(t, s.dirs, []string{"secret-of-", "content-of-the-file"})
		})
	}
	for _, end := range ends {
		end()
	}
}
