package templatefile

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// examples are calls of all functions with their results, as texts.
func examples() map[string]string {
	return map[string]string{
		`abs(-1)`: "1", `ceil(1.2)`: "2", `floor(1.8)`: "1", `max(1, 3, 2)`: "3", `min(2, 1)`: "1",
		`format("%s-%03d", "a", 7)`: "a-007", `join("-", ["a", "b"])`: "a-b", `lower("A")`: "a", `upper("a")`: "A", `replace("a.b", ".", "-")`: "a-b",
		`split(",", "a,b")[1]`: "b", `substr("abc", 1, 1)`: "b", `trim("?a?", "?")`: "a", `trimprefix("xa", "x")`: "a", `trimsuffix("ax", "x")`: "a", `trimspace(" a ")`: "a",
		`coalesce(null, "a")`: "a", `length(compact(["", "a"]))`: "1", `concat(["a"], ["b"])[1]`: "b", `contains(["a"], "a")`: "true", `join("", distinct(["b", "a", "b"]))`: "ba",
		`element(["a", "b"], 3)`: "b", `length(flatten([["a"], ["b", "c"]]))`: "3", `jsonencode({ a = [1, null] })`: `{"a":[1,null]}`, `keys({ b = 1, a = 2 })[0]`: "a",
		`length("äö")`: "2", `length([])`: "0", `lookup({ a = "x" }, "b", "y")`: "y", `merge({ a = 1 }, { a = 2 }).a`: "2", `reverse(["a", "b"])[0]`: "b",
		`slice(["a", "b", "c"], 1, 2)[0]`: "b", `sort(["b", "a"])[0]`: "a", `values({ b = 1, a = 2 })[0]`: "2", `zipmap(["a"], ["b"]).a`: "b",
		`join("", setunion(["a"], ["b"]))`: "ab", `join("", setintersection(["a", "c"], ["c"]))`: "c", `join("", setsubtract(["a", "c"], ["c"]))`: "a",
		`alltrue([true, false])`: "false", `anytrue([true, false])`: "true", `can(tonumber("x"))`: "false", `regex("[a-z]+", "12ab3")`: "ab",
		`tobool("true")`: "true", `tonumber("7") + 1`: "8", `tostring(7)`: "7", `tolist(["a", 1])[1]`: "1", `tomap({ a = 1 }).a`: "1", `join("", toset(["a", "a"]))`: "a",
		`parseint("ff", 16)`: "255", `pow(3, 2)`: "9", `signum(-3)`: "-1", `sum([1, 2.5])`: "3.5", `chomp("a\n\n")`: "a", `strrev("aé")`: "éa", `title("a b")`: "A B",
		`startswith("ab", "a")`: "true", `endswith("ab", "a")`: "false", `strcontains("abc", "b")`: "true", `indent(2, "a\nb\nc")`: "a\n  b\n  c",
		`join(" ", formatlist("%s-%s", ["a", "b"], "c"))`: "a-c b-c", `formatlist("%s", "a")[0]`: "a", `length(formatlist("%s", []))`: "0",
		`join(",", regexall("[a-z]", "1a2b"))`: "a,b", `regexall("(.)=(?:.)", "a=b")[0][0]`: "a", `length(regexall("x", "a"))`: "0", `regex("(?P<n>[0-9]+)", "a12").n`: "12",
		`replace("a1b22", "/[0-9]+/", "-")`: "a-b-", `replace("ab", "/(a)(b)/", "$2$1")`: "ba", `replace("abc", "/x*/", "-")`: "-a-b-c-", `replace("a/b", "/", "-")`: "a-b", `replace("ab", "", "-")`: "-a-b-",
		`chunklist(["a", "b", "c"], 2)[1][0]`: "c", `coalescelist([], ["a"])[0]`: "a", `index(["a", "b"], "b")`: "1", `one(["a"])`: "a", `one([]) == null`: "true", `one(toset(["a"]))`: "a",
		`join("", [for p in setproduct(["a", "b"], ["1"]) : "${p[0]}${p[1]}"])`: "a1b1", `transpose({ a = ["x", "y"], b = ["y"] }).y[1]`: "b", `join("", range(3))`: "012", `join("", range(1, 6, 2))`: "135",
		`base64encode("a?>")`: "YT8+", `base64decode("w6Q=")`: "ä", `urlencode("a b/c")`: "a+b%2Fc", `jsondecode("{\"a\": [1, null, true]}").a[0]`: "1", `jsondecode("\"a\"")`: "a",
		`md5("a")`: "0cc175b9c0f1b6a831c399e269772661", `sha1("a")`: "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8", `substr(sha512("a"), 0, 12)`: "1f40fc92da24",
		`sha256("a")`: "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
		`formatdate("DD MMM YYYY", "2026-01-02T03:04:05Z")`: "02 Jan 2026", `timeadd("2026-01-02T03:04:05Z", "25h")`: "2026-01-03T04:04:05Z",
		`try(tonumber("x"), {}.a, "else")`: "else", `try("a", "b")`: "a", `can(try())`: "false", `can({ a = 1 }.b)`: "false", `try([{ a = 1 }][0].a, 2)`: "1",
		`cidrhost("10.1.2.3/16", 258)`: "10.1.1.2", `cidrhost("10.0.0.0/24", -1)`: "10.0.0.255", `cidrhost("fd00::/64", 4660)`: "fd00::1234", `cidrhost("fd00::/64", -2)`: "fd00::ffff:ffff:ffff:fffe",
		`cidrnetmask("172.16.0.0/12")`: "255.240.0.0", `cidrsubnet("10.0.0.0/16", 8, 5)`: "10.0.5.0/24", `cidrsubnet("fd00:1::/48", 16, 162)`: "fd00:1:0:a2::/64", `cidrsubnet("10.0.0.0/24", 0, 0)`: "10.0.0.0/24",
		`join(" ", cidrsubnets("10.1.0.0/16", 4, 4, 8, 4))`: "10.1.0.0/20 10.1.16.0/20 10.1.32.0/24 10.1.48.0/20", `join(" ", cidrsubnets("fd00::/56", 8, 8))`: "fd00::/64 fd00:0:0:1::/64",
	}
}

// refusedCalls are those that have no result, neither here nor with Terraform.
var refusedCalls = []string{
	`cidrhost("10.0.0.0/24", 256)`, `cidrhost("10.0.0.0/24", -257)`, `cidrhost("10.0.0.0/24", 1.5)`, `cidrhost("10.0.0.0", 1)`, `cidrnetmask("fd00::/8")`,
	`cidrsubnet("10.0.0.0/24", 9, 0)`, `cidrsubnet("10.0.0.0/24", 1, 2)`, `cidrsubnets("10.0.0.0/24", 0)`, `cidrsubnets("10.0.0.0/24", 1, 1, 1)`, `cidrsubnets("10.0.0.0/24", 9)`,
	`one(["a", "b"])`, `one("a")`, `index(["a"], "b")`, `sum([])`, `base64decode("?")`, `jsondecode("{")`, `regex("(", "a")`, `regexall("(", "a")`, `replace("a", "/(/", "")`,
	`try(tonumber("x"))`, `try()`, `parseint("z", 10)`, `chunklist([1], -1)`, `range(2000)`, `coalescelist([])`,
}

// call is a function's result as a text.
func call(t *testing.T, expression string) (string, error) {
	t.Helper()
	machines, err := mustParse(t, machineOf(`name = "a"; pool = "lab"; labels = { a = `+expression+" }")).Machines(nil)
	if err != nil {
		return "", err
	}
	return machines[0].Labels["a"], nil
}

// Each function has the results that its examples say, and the documentation names it.
func TestFunctions(t *testing.T) {
	t.Parallel()
	for expression, want := range examples() {
		if strings.Contains(want, "\n") { // labels have one line
			expression, want = "replace("+expression+`, "\n", "|")`, strings.ReplaceAll(want, "\n", "|")
		}
		if got, err := call(t, expression); err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", expression, got, err, want)
		}
	}
	for _, expression := range refusedCalls {
		if got, err := call(t, expression); err == nil {
			t.Errorf("%s = %q, want an error", expression, got)
		}
	}
	// What Terraform answers wrongly: an address outside of the network, after 2^64 others.
	if got, err := call(t, `cidrhost("10.0.0.0/24", 18446744073709551617)`); err == nil {
		t.Errorf("cidrhost() = %q, want an error", got)
	}
	page, err := os.ReadFile("../../docs/TEMPLATES.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(page), "The functions are ")
	list, _, _ = strings.Cut(list, "\n")
	documented := map[string]bool{}
	for _, name := range regexp.MustCompile("`([a-z0-9]+)`").FindAllStringSubmatch(list, -1) {
		documented[name[1]] = true
	}
	tried := strings.Join(slices.Sorted(maps.Keys(examples())), " ")
	for name := range functions {
		if !strings.Contains(tried, name+"(") {
			t.Errorf("no example calls %s", name)
		}
		if !documented[name] {
			t.Errorf("docs/TEMPLATES.md does not name %s", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/TEMPLATES.md names %s, which is no function", name)
	}
}

// Terraform itself has the same results, and refuses the same calls.
func TestFunctionsAreTerraforms(t *testing.T) {
	t.Parallel()
	engine, err := exec.LookPath("terraform")
	if err != nil {
		t.Fatal(err)
	}
	dir, list := t.TempDir(), slices.Sorted(maps.Keys(examples()))
	var source strings.Builder
	for i, expression := range list {
		fmt.Fprintf(&source, "output \"e%d\" {\n  value = tostring(%s)\n}\n", i, expression)
	}
	for i, expression := range refusedCalls {
		fmt.Fprintf(&source, "output \"r%d\" {\n  value = can(%s)\n}\n", i, expression)
	}
	if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(source.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) []byte {
		cmd := exec.CommandContext(t.Context(), engine, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE=", "CHECKPOINT_DISABLE=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("terraform %s: %v\n%s", args[0], err, out)
		}
		return out
	}
	run("apply", "-auto-approve", "-no-color")
	var outputs map[string]struct{ Value any }
	if err := json.Unmarshal(run("output", "-json"), &outputs); err != nil {
		t.Fatal(err)
	}
	for i, expression := range list {
		if got := outputs[fmt.Sprint("e", i)].Value; got != examples()[expression] {
			t.Errorf("Terraform says %s = %q, and the example %q", expression, got, examples()[expression])
		}
	}
	for i, expression := range refusedCalls {
		if outputs[fmt.Sprint("r", i)].Value != false {
			t.Errorf("Terraform does not refuse %s", expression)
		}
	}
}
