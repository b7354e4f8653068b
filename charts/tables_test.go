package charts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// updateEnv has the snapshots written rather than compared.
const updateEnv = "TENDRIL_TEST_UPDATE_CHARTS"

// rendering is a set of values and what must be true of what they make.
type rendering struct {
	name   string
	values string
	// snapshot keeps all that is rendered in testdata/CHART/NAME.yaml.
	snapshot bool
	check    func(*testing.T, objects)
}

// testRenderings renders each case and holds it against helm's linter, the
// schemas, the restricted profile of Pod Security, its snapshot, and its own
// check.
func testRenderings(t *testing.T, c chart, cases []rendering) {
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rendered, complaint := c.template(t, tc.values)
			if complaint != "" {
				t.Fatalf("helm template of %s with\n%s\nfails:\n%s", c, tc.values, complaint)
			}
			if complaint := c.lint(t, tc.values); complaint != "" {
				t.Errorf("helm lint --strict complains:\n%s", complaint)
			}
			for _, kubernetes := range []string{oldestKubernetes, newerKubernetes} {
				if no := nonconforming(t, kubernetes, rendered); no != "" {
					t.Errorf("Kubernetes %s would not take what is rendered: %s\n%s", kubernetes, no, rendered)
				}
			}
			all := decode(t, rendered)
			for _, o := range all {
				for _, wrong := range unrestricted(o) {
					t.Errorf("%v %v is not for a namespace of the restricted profile: %s", o.get("kind"), o.get("metadata", "name"), wrong)
				}
			}
			if tc.snapshot {
				compare(t, filepath.Join("testdata", string(c), tc.name+".yaml"), rendered)
			}
			if tc.check != nil {
				tc.check(t, all)
			}
		})
	}
}

// compare holds a rendering against the one that is kept.
func compare(t *testing.T, file, rendered string) {
	t.Helper()
	if os.Getenv(updateEnv) != "" {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(rendered), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: run %s=1 go test ./charts", err, updateEnv)
	}
	if string(kept) == rendered {
		return
	}
	was, is := strings.Split(string(kept), "\n"), strings.Split(rendered, "\n")
	for i := range max(len(was), len(is)) {
		if i >= len(was) || i >= len(is) || was[i] != is[i] {
			t.Fatalf("what is rendered differs from %s from line %d on; if that is meant, run %s=1 go test ./charts and look at the difference\nkept:\n%s\nrendered:\n%s",
				file, i+1, updateEnv, excerpt(was, i), excerpt(is, i))
		}
	}
}

func excerpt(lines []string, from int) string {
	return strings.Join(lines[min(from, len(lines)):min(from+10, len(lines))], "\n")
}

// refusal is a set of values that must not be rendered.
type refusal struct {
	name   string
	values string
	// says are parts of what people are told: the key, and what to do.
	says []string
}

func testRefusals(t *testing.T, c chart, cases []refusal) {
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rendered, complaint := c.template(t, tc.values)
			if complaint == "" {
				t.Fatalf("helm template of %s takes\n%s\nand renders\n%s", c, tc.values, rendered)
			}
			for _, part := range tc.says {
				if !strings.Contains(complaint, part) {
					t.Errorf("helm template of %s with\n%s\nsays:\n%s\nwant %q in it", c, tc.values, complaint, part)
				}
			}
		})
	}
}
