package templatefile

import (
	"fmt"
	"hash/crc32"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// hostile are files, or a machine's arguments, that would take minutes or all memory.
func hostile() map[string]string {
	repeat := strings.Repeat
	argument := func(text string) string { return machineOf(`name = "a"; pool = "lab"; image = ` + text) }
	return map[string]string{
		// Loops.
		"loops in loops":          argument(`length([for a in var.list : [for b in var.list : [a, b]]])`),
		"loops in a template":     argument(`"%{ for a in var.list }%{ for b in var.list }${a}${b}%{ endfor }%{ endfor }"`),
		"a loop that fails":       argument(`[for a in var.list : [for b in var.list : a + b.c]]`),
		"splats of splats":        argument("var.list" + repeat("[*]", 300)),
		"a loop for each machine": machineOf(`for_each = toset([for i, a in slice(var.list, 0, 900) : "m${i}"]); name = each.key; pool = "lab"; image = join("", [for a in var.list : contains(var.list, "${a}x") ? "" : a])`),
		"a loop over a set":       argument(`[for a in var.list : [for b in var.set : b]]`),
		// Texts.
		"a long template":      argument(`"` + repeat("${var.text}", 20_000) + `"`),
		"long texts in a list": argument("length([" + repeat(`"${var.text}x", `, 10_000) + "])"),
		"replace":              argument(`replace(var.text, "", var.text)`),
		"replace by replace":   argument(`replace(replace(replace(var.text, "x", "xxxxxxxx"), "x", "xxxxxxxx"), "x", "xxxxxxxx")`),
		"join":                 argument(`join(var.text, var.list)`),
		"format":               argument(`format("` + repeat("%[1]s", 10_000) + `", var.text)`),
		"a wide format":        argument(`format("%2000000000d", 1)`),
		"a precise format":     argument(`format("%.999999999f", 1)`),
		"quotes of quotes":     argument(repeat("jsonencode(", 200) + `"\"\\"` + repeat(")", 200)),
		"upper and lower":      argument("length([for a in var.list : " + repeat("upper(lower(", 100) + "var.text" + repeat("))", 100) + "])"),
		"formatlist":           argument(`length(formatlist("` + repeat("%[1]s", 100) + `", var.text, var.list))`),
		"formatlist in loops":  argument(`length([for a in var.list : formatlist("` + repeat("%[1]s", 100) + `", range(100))])`),
		"indent":               argument(`indent(60000, join("\n", var.list))`),
		"split in loops":       argument(`length([for a in var.list : split("", var.text)])`),
		"regexall in loops":    argument(`length([for a in var.list : regexall("", var.text)])`),
		"regexall's groups":    argument(`length(regexall("` + repeat("()", 100) + `", var.text))`),
		"a replacement":        argument(`replace(var.text, "/x/", var.text)`),
		"replaced groups":      argument(`replace(var.text, "/(x+)/", "` + repeat("$1", 20_000) + `")`),
		"deep JSON":            argument(`length(jsondecode(join("", [for i in range(1000) : "` + repeat("[", 60) + `"])))`),
		"JSON in loops":        argument(`length([for a in var.list : jsondecode("[0${replace(substr(var.text, 0, 8000), "x", ",0")}]")])`),
		"JSON's digits":        argument(`length([for a in var.list : jsondecode(var.digits)])`),
		"base64 of base64":     argument(repeat("base64encode(", 200) + `"a"` + repeat(")", 200)),
		"digests":              argument(`length([for a in var.list : [for b in var.list : sha512(var.text)]])`),
		// Numbers.
		"a huge number":        argument(`1e600000000`),
		"a huge number's text": argument(`"${1e300000000}"`),
		"huge by small steps":  argument(repeat("1e600 * ", 500) + "1"),
		"an infinite number":   argument(`1e999999999`),
		"a small number":       argument(`tostring(1e-999999999)`),
		"a huge value":         argument(`jsonencode(var.huge)`),
		"a huge key":           argument(`{ (var.huge) = 1 }`),
		"many digits":          argument(repeat("9", 200_000)),
		"many digits in text":  argument(`length([for a in var.list : tonumber(var.digits)])`),
		"a power":              argument(`pow(2, 1e9)`),
		"no power":             argument(`pow(-8, 0.5)`),
		"ranges in loops":      argument(`length([for a in var.list : [for b in var.list : range(1000)]])`),
		"subnets":              argument(`length([for a in var.list : cidrsubnets("::/0", ` + repeat("128, ", 5000) + `1)])`),
		"parsed digits":        argument(`length([for a in var.list : parseint(var.digits, 10)])`),
		// What is hidden by a function that catches errors.
		"tried":     argument(repeat("try(", 400) + `replace(var.text, "", var.text)` + repeat(`, "x")`, 400)),
		"tried 5":   argument(repeat("try(", maxCatches) + `[for a in var.list : [for b in var.list : b]]` + repeat(`, "x")`, maxCatches)),
		"tried all": argument(`length([for a in var.list : try(replace(var.text, "x", "yy${a}"), tonumber(a), a)])`),
		"can":       argument(`length([for a in var.list : can([for b in var.list : upper(b)])])`),
		// What is compared in pairs.
		"distinct":                 argument(`length(distinct(var.list))`),
		"a set":                    argument(`length(toset(var.list))`),
		"a set of equal hashes":    argument(`length([for a in var.list : toset(var.hashes)])`),
		"one type for many":        argument(`length(tolist([for a in var.list : a == "" ? 1 : a]))`),
		"one type for two":         argument(`length(var.flag ? [for a in var.list : a] : tolist([1]))`),
		"coalesce":                 argument(`coalesce([for a in var.list : null]...)`),
		"products":                 argument(`length(setproduct(var.list, var.list, var.list))`),
		"products of sets":         argument(`length([for a in var.list : setproduct(toset(slice(var.hashes, 0, 38)), toset(slice(var.hashes, 0, 38)))])`),
		"unions":                   argument("length(setunion(" + repeat("var.hashes, ", 99) + "[]))"),
		"concatenations":           argument(repeat("concat(", 500) + "var.hashes" + repeat(", var.hashes)", 500)),
		"objects with many shapes": argument(`length(tolist([for i, a in var.hashes : { "a${i}" = a }]))`),
		// Syntax.
		"parentheses":       argument(repeat("(", 200_000)),
		"brackets":          argument(repeat("[", 900) + repeat("]", 900)),
		"templates":         argument(repeat(`"${`, 400) + repeat(`}"`, 400)),
		"blocks in blocks":  repeat("a {\n", 50_000),
		"many blocks":       repeat("step \"a\" { label = \"b\" }\n", 9_000),
		"many arguments":    repeat("a = 1\n", 40_000),
		"many names":        argument("[" + repeat("var.a.b.c, ", 20_000) + "]"),
		"no syntax":         repeat("\x00\xff\"${", 50_000),
		"one line":          repeat("=", maxFile),
		"ends of templates": argument(`"` + repeat("%{ if true }", 900) + `"`),
		"heredocs":          repeat("a = <<A\n", 30_000),
		"a heredoc":         "title = <<A\n" + repeat("\n", 260_000) + "A\n",
		"signs in a text":   argument(`"` + repeat("%", 250_000) + `"`),
		"comments":          repeat("/*", 100_000),
		"too large":         repeat(" ", maxFile+1),
	}
}

// hostileValues are variables whose values are as large as a run's can be.
func hostileValues() map[string]cty.Value {
	texts := func(n int, text func(int) string) []cty.Value {
		list := make([]cty.Value, n)
		for i := range list {
			list[i] = cty.StringVal(text(i))
		}
		return list
	}
	list := texts(4000, func(i int) string { return fmt.Sprintf("m%d", i) })
	return map[string]cty.Value{
		"list": cty.ListVal(list), "set": cty.SetVal(list), "hashes": cty.ListVal(collisions(1400)), "flag": cty.True,
		"text": cty.StringVal(strings.Repeat("x", 60_000)), "digits": cty.StringVal(strings.Repeat("9", 60_000)), "huge": cty.MustParseNumberVal("1e600000000"),
		"a": cty.ObjectVal(map[string]cty.Value{"b": cty.ObjectVal(map[string]cty.Value{"c": cty.True})}),
	}
}

// collisions are texts that a set keeps in one place: it goes by CRC-32, which is linear,
// so 64 letters that are changed in the right places leave it as it is.
func collisions(n int) (found []cty.Value) {
	const length = 64
	sum := func(b []byte) uint32 { return crc32.ChecksumIEEE(fmt.Appendf(nil, "%q", b)) }
	base := []byte(strings.Repeat("a", length))
	// Each change of one letter (a to c flips one bit) changes the sum by what is in rows.
	type row struct {
		sum     uint32
		letters uint64
	}
	var basis []row
	var kernel []uint64
	for i := range length {
		changed := []byte(string(base))
		changed[i] = 'c'
		r := row{sum(changed) ^ sum(base), 1 << i}
		for _, b := range basis {
			if r.sum^b.sum < r.sum {
				r = row{r.sum ^ b.sum, r.letters ^ b.letters}
			}
		}
		if r.sum == 0 {
			kernel = append(kernel, r.letters)
		} else {
			basis = append(basis, r)
		}
	}
	for i := range n {
		letters, text := uint64(0), []byte(string(base))
		for j, k := range kernel {
			if i>>j&1 == 1 {
				letters ^= k
			}
		}
		for j := range length {
			if letters>>j&1 == 1 {
				text[j] = 'c'
			}
		}
		found = append(found, cty.StringVal(string(text)))
	}
	return found
}

// Whatever a template says, it is refused or done soon, and in little memory: within two
// seconds on a machine that does nothing else. Without the bounds it would be minutes.
func TestHostileFilesEndSoon(t *testing.T) {
	vars := hostileValues()
	if hashes := vars["hashes"].AsValueSlice(); hashes[1].Hash() != hashes[1000].Hash() || hashes[1].RawEquals(hashes[1000]) {
		t.Fatal("the texts' hashes are not equal")
	}
	for name, source := range hostile() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		started := time.Now()
		f, err := Parse([]byte(source))
		if err == nil {
			if os.Getenv("TENDRIL_TEST_FAULTS") != "all" {
				f.limit = longest / 5 // what is beyond it takes as long, however late it ends
			}
			_, err = f.Machines(vars)
		}
		took := time.Since(started)
		runtime.ReadMemStats(&after)
		message := "no error"
		if err != nil {
			message, _, _ = strings.Cut(err.Error()[strings.Index(err.Error(), "\n")+1:], "\n")
			if len(err.Error()) > 50_000 {
				t.Errorf("%s: the message has %d bytes", name, len(err.Error()))
			}
		}
		t.Logf("%-24s %5d ms %5d MB  %.110s", name, took.Milliseconds(), (after.TotalAlloc-before.TotalAlloc)>>20, message)
		if limit := patience.For(10 * time.Second); took > limit {
			t.Errorf("%s: %s, want %s at most: %s", name, took, limit, message)
		}
	}
}

// What a large class needs is far below the bounds: a thousand machines, each with all
// arguments, a loop over the others' names and a configuration of two kilobytes.
func TestBoundsLeaveRoom(t *testing.T) {
	t.Parallel()
	source := machineOf(`for_each = toset([for s in var.students : lower(s)])
    name     = "${var.class}-${each.key}"
    pool     = contains(var.special, each.key) ? "big" : "lab"
    image    = coalesce(var.image, "debian-13")
    cores    = max(2, var.cores)
    memory   = var.cores * 1024
    disk     = 20
    labels   = merge(var.labels, { student = each.key, class = var.class })
    proxmox {
      peers     = join(",", [for s in var.peers : "${var.class}-${s}"])
      user_data = <<EOT
#cloud-config
hostname: ${each.key}
users: ${jsonencode([{ name = each.key, keys = [var.secret] }])}
` + strings.Repeat("# a line that says ${var.class}\n", 60) + `
EOT
    }`)
	students := make([]cty.Value, maxMachines)
	for i := range students {
		students[i] = cty.StringVal(fmt.Sprintf("Student-%d", i))
	}
	labels := cty.MapVal(map[string]cty.Value{"a": cty.StringVal("b")})
	f := mustParse(t, source)
	f.limit = patience.For(10 * time.Second) // the units count here
	machines, err := f.Machines(map[string]cty.Value{
		"students": cty.ListVal(students), "peers": cty.ListVal(students[:30]), "special": cty.ListVal(students[:100]), "class": cty.StringVal("c1"), "image": cty.NullVal(cty.String),
		"cores": cty.NumberIntVal(4), "labels": labels, "secret": cty.StringVal("ssh-ed25519 AAAA").Mark(tfvars.Sensitive),
	})
	if err != nil || len(machines) != maxMachines {
		t.Fatalf("Machines() = %d machines, %v", len(machines), err)
	}
	if spent := budget - f.meter.left; spent > budget*3/4 {
		t.Errorf("they spend %d of %d", spent, budget)
	}
}
