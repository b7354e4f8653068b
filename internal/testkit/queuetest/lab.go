package queuetest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
)

// LabPools is a report of pools: lab has room, of whose nodes one is not reachable, and den could
// not be listed.
const LabPools = `[
	{"name": "lab", "kind": "proxmox", "limits": {"overcommit_cores": 4, "overcommit_memory": 1, "ids": [100, 199], "addresses": [{"from": "10.0.0.10", "to": "10.0.0.99"}]}, "taken": {"ids": [100]}, "nodes": [
		{"name": "pve1", "online": true, "cores": 32, "memory_mib": 131072, "cores_used": 0.42, "memory_used": 0.61, "images": ["debian-13", "rocky-9"], "labels": {"rack": "a"},
		 "storages": [{"name": "local-lvm", "free_gib": 812, "size_gib": 1800}, {"name": "ceph", "free_gib": 2100.5, "size_gib": 9000}]},
		{"name": "pve2", "online": true, "cores": 32, "memory_mib": 131072, "cores_used": 0.18, "memory_used": 0.35, "images": ["debian-13"], "labels": {"rack": "b"},
		 "storages": [{"name": "local-lvm", "free_gib": 1240, "size_gib": 1800}, {"odd": true}, {"name": "vast", "free_gib": 1e400, "size_gib": 1}]},
		{"name": "pve3", "online": false, "cores": 16, "memory_mib": 65536, "images": ["debian-13"], "labels": {"rack": "b"}}]},
	{"name": "den", "kind": "libvirt", "problem": "connect to 192.0.2.7: connection refused", "nodes": []}]`

// Lab is an agent that has reported LabPools, and a claim of a workspace that has machines there.
type Lab struct {
	*World
	Agent     queue.Agent
	Claim     uuid.UUID
	Provision uuid.UUID
	hash      string
}

// NewLab reports LabPools as a new agent of the world's cluster, deploys to the workspace, claims
// that, and reserves places for ada and grace.
func NewLab(t testing.TB, w *World, workspace string) *Lab {
	t.Helper()
	digest := sha256.Sum256([]byte(w.Token))
	l := &Lab{World: w, Agent: NewAgent("lab"), Claim: uuid.New(), hash: hex.EncodeToString(digest[:])}
	about, err := json.Marshal(map[string]any{
		"instance_id": l.Agent.Instance, "boot_id": l.Agent.Boot, "name": l.Agent.Name, "host": l.Agent.Host, "version": "test", "contract": queue.Contract, "slots": 2,
	})
	if err != nil {
		t.Fatalf("queuetest: %v", err)
	}
	w.Exec(t, "SELECT public.register_agent($1, $2)", l.hash, string(about))
	l.Report(t, LabPools)
	l.Provision = w.Deploy(t, workspace)
	w.Exec(t, "UPDATE public.provisions SET priority = 100 WHERE id = $1", l.Provision)
	w.Exec(t, "SELECT public.fetch_next_provision($1, $2, $3, $4)", l.hash, l.Agent.Instance, l.Agent.Boot, l.Claim)
	l.Reserve(t, "ada", "grace")
	return l
}

// Report reports pools as the agent.
func (l *Lab) Report(t testing.TB, pools string) {
	t.Helper()
	l.Exec(t, "SELECT public.report_pools($1, $2, $3, $4)", l.hash, l.Agent.Instance, l.Agent.Boot, pools)
}

// Reserve places machines of 2 cores and 4 GiB, of image debian-13, in pool lab.
func (l *Lab) Reserve(t testing.TB, names ...string) {
	t.Helper()
	var wants []json.RawMessage
	for _, name := range names {
		wants = append(wants, json.RawMessage(fmt.Sprintf(`{"name": %q, "pool": "lab", "cores": 2, "memory_mib": 4096, "image": "debian-13"}`, name)))
	}
	text, err := json.Marshal(wants)
	if err != nil {
		t.Fatalf("queuetest: %v", err)
	}
	l.Exec(t, "SELECT public.reserve_machines($1, $2, $3)", l.hash, l.Claim, string(text))
}
