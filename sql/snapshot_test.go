package sql_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// ageText is what an armoured age message looks like.
const ageText = "-----BEGIN AGE ENCRYPTED FILE-----\nYWdlLWVuY3J5cHRpb24ub3JnL3YxCg==\n-----END AGE ENCRYPTED FILE-----\n"

// What came to the snapshot with the operations is refused by the database and by
// programs in the same words.
func TestSnapshotProblemsInTheSameWords(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	long := strings.Repeat("a", 513)
	many := "[" + strings.TrimSuffix(strings.Repeat(`"a.b",`, 101), ",") + "]"
	uuid := `"00000000-0000-4000-8000-000000000001"`
	sealed := func(name, text string) string {
		quoted, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`"sealed_vars": {%q: %s}`, name, quoted)
	}
	for members, wrong := range map[string]bool{
		// What is right.
		`"targets": ["aws_vpc.a", "module.x[\"a b\"].y[0]"], "replace": ["a.b"], "approval": "always", "timeout_seconds": 604800, "max_attempts": 10`: false,
		`"targets": [], "replace": null, "approval": null, "timeout_seconds": 1e3, "max_attempts": 1, "state": null, "sealed_vars": {}`:               false,
		`"requester_key": "age1` + strings.Repeat("q", 58) + `", "lock_id": "6b7e-1"`:                                                                 false,
		`"requester_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI` + strings.Repeat("A", 43) + ` ada@example"`:                                         false,
		sealed("password", ageText):                                                                                      false,
		`"state": {"command": "pull"}`:                                                                                   false,
		`"state": {"command": "pull", "version": 7, "args": null}`:                                                       false,
		`"state": {"command": "push", "upload": ` + uuid + `}`:                                                           false,
		`"state": {"command": "mv", "args": ["a.b", "c.d"]}`:                                                             false,
		`"state": {"command": "rm", "args": ["a.b"]}`:                                                                    false,
		`"state": {"command": "import", "args": ["a.b", "i-0123"]}`:                                                      false,
		`"state": {"command": "rollback", "version": 1}`:                                                                 false,
		`"state": {"command": "reveal", "args": ["machine.a"]}`:                                                          false,
		`"state": {"command": "reveal"}`:                                                                                 false,
		`"requester_key": "tendril-certificate-1.e30.` + strings.Repeat("a", 86) + `"`:                                   false,
		`"state": {"command": "rollback", "version": 1, "order": "tendril-order-1.e30.` + strings.Repeat("a", 86) + `"}`: false,
		`"state": {"command": "adopt"}, "targets": ["` + strings.Repeat("ä", 512) + `"]`:                                 false,

		// What is wrong.
		`"targets": "a.b"`: true, `"targets": {}`: true, `"targets": [1]`: true, `"targets": [null]`: true, `"targets": [""]`: true, `"targets": ["-x"]`: true,
		`"targets": ["a\u0001b"]`: true, `"targets": ["a\u0085b"]`: true, `"targets": ["` + long + `"]`: true, `"targets": ` + many: true,
		`"replace": [["a"]]`: true, `"replace": ["ok", "a\nb", "--", {}]`: true,
		`"approval": ""`: true, `"approval": "sometimes"`: true, `"approval": true`: true, `"approval": []`: true,
		`"timeout_seconds": 0`: true, `"timeout_seconds": 604801`: true, `"timeout_seconds": 1.5`: true, `"timeout_seconds": "60"`: true, `"timeout_seconds": -1`: true,
		`"max_attempts": 0`: true, `"max_attempts": 11`: true, `"max_attempts": {}`: true, `"max_attempts": false`: true,
		`"requester_key": "age1"`: true, `"requester_key": ""`: true, `"requester_key": 1`: true, `"requester_key": "ssh-rsa AAAAB3"`: true,
		`"requester_key": "tendril-certificate-1.e30.` + strings.Repeat("a", 85) + `"`: true, `"requester_key": "tendril-certificate-1.` + strings.Repeat("a", 8192) + `.` + strings.Repeat("a", 86) + `"`: true,
		`"state": {"command": "pull", "order": "tendril-order-1.e30.` + strings.Repeat("a", 86) + `"}`: true, `"state": {"command": "rollback", "version": 1, "order": 1}`: true,
		`"state": {"command": "rollback", "version": 1, "order": "tendril-order-1.e30"}`: true,
		`"lock_id": ""`: true, `"lock_id": "-force"`: true, `"lock_id": 5`: true, `"lock_id": "` + strings.Repeat("x", 201) + `"`: true,
		`"sealed_vars": []`: true, `"sealed_vars": {"a": null}`: true, `"sealed_vars": {"a": 1, "b": "plain"}`: true,
		sealed("project_name", ageText):                            true, // in terraform_vars as well
		sealed("a", ageText+"x"):                                   true,
		sealed("a", ageText+strings.Repeat("\n", 16<<10)):          true,
		sealed("a", strings.Replace(ageText, "BEGIN", "begin", 1)): true,
		`"state": "pull"`:                                          true, `"state": {}`: true, `"state": {"command": 1}`: true, `"state": {"command": "destroy"}`: true, `"state": {"command": ""}`: true,
		`"state": {"command": "` + long + `"}`: true, `"state": {"command": null, "args": ["-x"], "version": "1", "upload": 1}`: true,
		`"state": {"command": "mv", "args": ["a.b"]}`: true, `"state": {"command": "rm"}`: true, `"state": {"command": "list", "args": ["a.b"]}`: true,
		`"state": {"command": "mv", "args": "a.b"}`: true, `"state": {"command": "mv", "args": ["a", "-b"]}`: true, `"state": {"command": "mv", "args": ` + many + `}`: true,
		`"state": {"command": "push"}`: true, `"state": {"command": "push", "upload": "x"}`: true, `"state": {"command": "pull", "upload": ` + uuid + `}`: true,
		`"state": {"command": "reveal", "args": ["a", "b"]}`: true,
		`"state": {"command": "push", "upload": []}`:         true, `"state": {"command": "rollback"}`: true, `"state": {"command": "rollback", "version": 0}`: true,
		`"state": {"command": "push", "upload": ` + uuid + `, "version": 1}`: true,
	} {
		snapshot := `{"workspace": "w", "template_source": {"repo": "https://git.example/a/b", "version": "v1"}, "terraform_vars": {"project_name": null}, ` + members + `}`
		got := one[[]string](t, w.conn, "SELECT tendril.snapshot_problems($1)", snapshot)
		var want []string
		if _, err := provision.ParseSnapshot([]byte(snapshot)); err != nil {
			want = strings.Split(err.Error(), "\n")
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || len(got) > 0 != wrong {
			t.Errorf("snapshot_problems(%.200s) = %q, want what ParseSnapshot says, %q, and something: %t", members, got, want, wrong)
		}
	}
}

// So is what does not go with an operation.
func TestOperationProblemsInTheSameWords(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for _, members := range []string{
		``, `, "targets": ["a.b"]`, `, "replace": ["a.b"]`, `, "lock_id": "x"`, `, "state": {"command": "list"}`, `, "targets": [], "replace": null, "lock_id": null`,
		`, "targets": ["a"], "replace": [], "lock_id": "x", "state": {"command": "list"}`,
	} {
		snapshot := `{"workspace": "w", "template_source": {"repo": "https://git.example/a/b", "version": "v1"}` + members + `}`
		parsed, err := provision.ParseSnapshot([]byte(snapshot))
		if err != nil {
			t.Fatal(err)
		}
		for _, operation := range provision.Operations {
			got := strings.Join(one[[]string](t, w.conn, "SELECT tendril.operation_problems($1, $2)", operation, snapshot), "\n")
			want := ""
			if err := parsed.CheckOperation(operation); err != nil {
				want = err.Error()
			}
			if got != want {
				t.Errorf("operation_problems(%s, %s) = %q, want what CheckOperation says, %q", operation, members, got, want)
			}
		}
	}
}
