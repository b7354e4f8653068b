package charts

import (
	"strings"
	"testing"
)

// The notes are the next step; what is dangerous is said in them.
func TestAgentNotes(t *testing.T) {
	t.Parallel()
	const managed = "state: {default: managed}\nidentity: {existingSecret: i}\n"
	for _, tc := range []struct {
		name, values string
		has, lacks   []string
	}{
		{"three values", three, []string{
			"An agent is starting in namespace platform, for cluster prod.",
			"NOTHING WILL RUN YET. policy.repos is empty",
			"helm upgrade tendril oci://ghcr.io/tendril-run/charts/tendril --namespace platform --reset-then-reuse-values",
			"kubectl rollout status statefulset/tendril --namespace platform",
			"kubectl exec --namespace platform tendril-0 -- tendril doctor",
			`The line "token" must name cluster prod.`,
			"prod.tendril-0",
			"States of templates without a backend of their own lie on the agent's volume.",
			"The agent makes its identity itself",
			`policy.approval is "never"`,
		}, []string{"WARNING", "The token is a value"}},
		{"allowed", three + "policy: {repos: ['https://github.com/acme/*'], approval: always}\n", nil, []string{"NOTHING WILL RUN YET", "policy.approval is"}},
		{"no volume", three + managed + "persistence: {enabled: false}\n", []string{"WARNING: persistence.enabled=false. What the agent could not yet deliver"}, []string{"lie on the agent's volume", "makes its identity itself"}},
		{"deleted states", three + "persistence: {retention: {whenDeleted: Delete}}\n", []string{`WARNING: persistence.retention.whenDeleted=Delete: "helm uninstall" deletes them.`}, nil},
		{"token as a value", "cluster: prod\nqueue: {url: https://t.example, token: tnd_abc}\n", []string{"The token is a value of this release", "the Secret tendril-token has"}, []string{"tnd_abc"}},
		{"join", joining, []string{"it joins with the one-time token in the Secret tendril-join,", "the Secret tendril-join has a token of that cluster"}, []string{"A token lets in one agent"}},
		{"service account", byAccount, []string{"It joins by its service account platform/tendril,", "trellis clusters trust prod", "queue.join.serviceAccount.audience is that of another cluster"}, []string{"one-time token", "the Secret"}},
		{"several join", joining + managed + "replicas: 2\n", []string{"A token lets in one agent", "trellis clusters join-token prod"}, nil},
		{"replicas", three + managed + "replicas: 3\n", []string{"3 agents are starting"}, nil},
		{"open", three + "networkPolicy: {enabled: false}\n", []string{"networkPolicy.enabled=false"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			notes := agentChart.notes(t, tc.values)
			for _, part := range tc.has {
				if !strings.Contains(notes, part) {
					t.Errorf("the notes lack %q:\n%s", part, notes)
				}
			}
			for _, part := range tc.lacks {
				if strings.Contains(notes, part) {
					t.Errorf("the notes have %q:\n%s", part, notes)
				}
			}
		})
	}
}
