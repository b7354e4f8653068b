package terraform

import (
	"os"
	"strings"

	"github.com/hashicorp/terraform-exec/tfexec"
)

// engineEnv turns the caller's list into the engine's whole environment. The
// result is never nil, because terraform-exec takes nil to mean: inherit
// everything, the agent's secrets too.
func engineEnv(environ []string) map[string]string {
	env := make(map[string]string, len(environ)+1)
	for _, entry := range environ {
		if key, value, ok := strings.Cut(entry, "="); ok && key != "" {
			env[key] = value
		}
	}
	env = tfexec.CleanEnv(env)
	// Terraform warns at every command about a file that is not there.
	if file, ok := env["TF_CLI_CONFIG_FILE"]; ok {
		if _, err := os.Stat(file); err != nil {
			delete(env, "TF_CLI_CONFIG_FILE")
		}
	}
	// The engine must not call its vendor. TF_IN_AUTOMATION and an empty
	// TF_LOG are added by terraform-exec itself.
	env["CHECKPOINT_DISABLE"] = "1"
	return env
}
