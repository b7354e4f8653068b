package terraform

import (
	"maps"
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

// alone is the environment of a command that starts no provider. Such an engine
// needs little memory and ends soon, and a third of its time goes into
// collecting garbage unless it is told not to hurry. Providers would inherit
// that and could take some times the memory they need otherwise.
func alone(env map[string]string) map[string]string {
	if _, set := env["GOGC"]; set {
		return env
	}
	env = maps.Clone(env)
	env["GOGC"] = "400"
	return env
}
