package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// What agents report of pools, quotas and names of images, by the command line.
func TestPoolsVerbs(t *testing.T) {
	t.Parallel()
	url, env := ownServer(t)
	run := func(args ...string) result { return trellisEnv(t, env, args...) }
	run("pools").want(t, "no pools", exitOK, "No agent has reported a pool yet.")
	token := strings.TrimSpace(run("clusters", "create", "prod").out)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	w := &queuetest.World{URL: url, Conn: conn, Token: token}
	w.Cluster = uuid.MustParse(w.Text(t, "SELECT id::text FROM public.clusters WHERE name = 'prod'"))
	w.Exec(t, "UPDATE tendril.settings SET lease = '1 hour'") // no agent renews what the lab claims
	queuetest.NewLab(t, w, "class/a")

	run("pools").want(t, "pools", exitOK, "POOL", "den", "unreachable", "lab", "proxmox", "reachable", "2/3", "36 %")
	run("pools", "show", "lab").want(t, "pools show", exitOK, "images", "debian-13 rocky-9", "pve1", "ceph 2100 GiB", "+4 cores, +8192 MiB", "rack=a", "ada", "pve2 has 75 points")
	run("pools", "show", "den").want(t, "pools show of one that is away", exitOK, "connect to 192.0.2.7: connection refused")
	rack := filepath.Join(t.TempDir(), "rack.csv")
	if err := os.WriteFile(rack, []byte("name,driver,address\na,ipmi,b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run("pools", "enroll", "lab", rack).want(t, "servers in a pool of virtual machines", exitUsage, "pool lab is of kind proxmox")
	run("pools", "show", "none").want(t, "no such pool", exitFailed, `there is no pool "none"`)
	var list []wire.Pool
	if r := run("pools", "list", "--cluster", "prod", "-o", "json"); json.Unmarshal([]byte(r.out), &list) != nil || len(list) != 2 || list[1].Machines != 2 {
		t.Errorf("pools list -o json = %s %s, want two pools", r.out, r.stderr)
	}

	run("machines", "list", "--status", "reserved").want(t, "reserved machines", exitOK, "ada ", "class/a", "reserved", "pve2", "10.0.0.10", "grace ")
	run("machines", "show", "ada").want(t, "a reserved machine", exitOK, "reserved", "pve2")
	run("machines", "stop", "ada").want(t, "a stop of a reserved machine", exitFailed, "is reserved: no run has made it yet")
	if r := run("machines", "list", "-o", "ssh-config"); r.code != exitOK || strings.Contains(r.out+r.stderr, "ada") {
		t.Errorf("machines list -o ssh-config = %s %s, want no machine that is not there yet", r.out, r.stderr)
	}

	run("pools", "quota").want(t, "no quotas", exitOK, "There is no quota")
	run("pools", "quota", "set").want(t, "a quota of nothing", exitUsage, "give --machines, --cores or --memory")
	run("pools", "quota", "set", "--machines", "-1").want(t, "a quota below 0", exitUsage, "a whole number from 0")
	run(typed(pages.Code(t, "docs/GUIDE.md", "trellis pools quota set --workspaces class/* --pool lab --machines 40"))...).want(t, "a quota", exitOK, "The quota is set")
	run("pools", "quota", "set", "--memory", "0").want(t, "a quota of memory", exitOK, "The quota is set")
	run("pools", "quota").want(t, "quotas", exitOK, "class/*", "2 of 40", "class/a (2)", "8192 of 0 MiB")
	var quotas []wire.PoolQuota
	if r := run("pools", "quota", "list", "-o", "json"); json.Unmarshal([]byte(r.out), &quotas) != nil || len(quotas) != 2 {
		t.Fatalf("pools quota list -o json = %s %s, want two", r.out, r.stderr)
	}
	run("pools", "quota", "delete", "x").want(t, "no id", exitUsage, "is no quota's id")
	run("pools", "quota", "delete", quotas[0].ID.String()).want(t, "quota delete", exitOK, "is deleted")
	run("pools", "quota", "delete", quotas[0].ID.String()).want(t, "quota delete, twice", exitFailed, "not found")

	run(typed(pages.Code(t, "docs/GUIDE.md", "trellis pools set-image POOL IMAGE NAME", "POOL", "lab", "IMAGE", "linux", "NAME", "debian-13"))...).want(t, "set-image", exitOK, "linux is debian-13 in pool lab.")
	run("pools", "show", "lab").want(t, "pools show", exitOK, "linux=debian-13")
	run("pools", "delete-image", "lab", "linux", "-o", "json").want(t, "delete-image", exitOK, `"deleted": true`)
	if r := run("pools", "show", "lab"); strings.Contains(r.out, "linux=") {
		t.Errorf("the name is there after it was deleted: %s", r.out)
	}

	w.Exec(t, `INSERT INTO public.template_inspections (org_id, repo, version, path, address, status, variables, file) SELECT org_id, 'https://git.example/placed', 'v1', '', 'https://git.example/placed', 'done', $2, $3 FROM public.clusters WHERE id = $1`, w.Cluster,
		`[{"name": "names", "type_json": ["set", "string"], "required": true}]`,
		"provisioner \"machine\" {\n machine {\n for_each = var.names\n name = each.key\n pool = \"lab\"\n image = \"debian-13\"\n cores = 2\n memory = 2048\n }\n}\n")
	preview := []string{"pools", "preview", "--repo", "https://git.example/placed", "--version", "v1", "--workspace", "class/new"}
	run(preview...).want(t, "a preview of what is not filled in", exitFailed, "Fill in names.")
	run(append(preview, "--var-json", `names=["ann","bob"]`)...).want(t, "a preview", exitOK, "2 machines: 2 on pve2", "ann", "lab", "pve2 has")
	var placement wire.Placement
	if r := run(append(preview, "--var-json", `names=["ann"]`, "-o", "json")...); json.Unmarshal([]byte(r.out), &placement) != nil || len(placement.Machines) != 1 || placement.Machines[0].Node != "pve2" {
		t.Errorf("pools preview -o json = %s %s", r.out, r.stderr)
	}
	run("pools", "quota", "set", "--workspaces", "class/n*", "--machines", "1").want(t, "a quota", exitOK, "The quota is set")
	run(append(preview, "--var-json", `names=["ann","bob"]`)...).want(t, "a preview beyond a quota", exitFailed, "this needs 2 more")
	run("pools", "preview", "--workspace", "x").want(t, "a preview of nothing", exitUsage, "say what to deploy")

	run("pools", "free", "ada").want(t, "a place of no workspace", exitUsage, "--workspace is missing")
	run("pools", "free", "ada", "--workspace", "class/a").want(t, "a place whose run goes on", exitFailed, "may still make machine")
	w.Exec(t, "UPDATE public.reservations SET provision_id = NULL, wanted_by = NULL")
	w.Exec(t, "UPDATE public.workspaces SET running_claim = NULL")
	run(typed(pages.Code(t, "docs/GUIDE.md", "trellis pools free MACHINE --workspace NAME", "MACHINE", "ada", "NAME", "class/a"))...).want(t, "a place that is left over", exitOK, "The place of ada in class/a is free.")
	run("pools", "free", "grace", "--workspace", "class/a", "-o", "json").want(t, "as JSON", exitOK, `"freed": true`)
	run("pools", "free", "ada", "--workspace", "class/a").want(t, "a place twice", exitFailed, "no place is reserved")
}
