package devstack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	exampletemplates "github.com/tendril-run/tendril/examples/templates"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/pvesim"
	"github.com/tendril-run/tendril/templates"
)

// agentPool is one of the agent's [[pools]].
type agentPool struct {
	Name      string       `toml:"name"`
	Kind      string       `toml:"kind"`
	URL       string       `toml:"url"`
	TokenFile string       `toml:"token_file"`
	CAFile    string       `toml:"ca_file"`
	VMIDs     string       `toml:"vm_ids"`
	Addresses []string     `toml:"addresses"`
	Gateway   string       `toml:"gateway"`
	Images    []agentImage `toml:"images"`
}

const (
	// simPool is the name of the pool whose machines are simulated.
	simPool = "pve-sim"
	// simSpeed is how much faster its time passes: as fast as on a clock, to see the steps.
	simSpeed = 1
	// simCopy is how long a copy of a disk takes there.
	simCopy = 3 * time.Second
)

// startPVESim starts a simulated Proxmox cluster in this process, and makes a pool of it for the
// agent. Its machines end with it.
func (s *Stack) startPVESim() error {
	done := s.report.Step("Simulated Proxmox")
	sim, token, err := pvesim.Lab(pvesim.Options{Speed: simSpeed, Forget: true})
	if err != nil {
		return fmt.Errorf("start the simulated Proxmox cluster: %w", err)
	}
	s.pveSim = sim
	sim.CopyTakes(simCopy)
	dir := s.options.path("pve-sim")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the simulated Proxmox cluster's token: %w", err)
	}
	tokenFile := filepath.Join(dir, "token")
	if err := instance.WriteSecret(tokenFile, []byte(token+"\n")); err != nil {
		return fmt.Errorf("write the token of the simulated Proxmox cluster: %w", err)
	}
	ca, err := sim.CAFile(dir)
	if err != nil {
		return fmt.Errorf("write the certificate of the simulated Proxmox cluster: %w", err)
	}
	s.pools = append(s.pools, agentPool{
		Name: simPool, Kind: "proxmox", URL: sim.URL(), TokenFile: tokenFile, CAFile: ca,
		VMIDs: "200-299", Addresses: []string{"192.0.2.10-192.0.2.109/24"}, Gateway: "192.0.2.1",
	})
	done(fmt.Sprintf("pool %s, three nodes, image %s; its machines are gone when this ends", simPool, pvesim.LabImage))
	return nil
}

// simTemplate is the example of a class, for the simulated pool: without its health check, since
// nobody answers at a simulated machine's address. clean removes its files.
func simTemplate() (sample templates.Template, clean func(), err error) {
	dir, err := os.MkdirTemp("", "trellis-class-")
	if err != nil {
		return sample, nil, err
	}
	clean = func() { _ = os.RemoveAll(dir) } // goes with other temporary files
	defer func() {
		if err != nil {
			clean()
		}
	}()
	if err := os.CopyFS(dir, exampletemplates.Class()); err != nil {
		return sample, nil, err
	}
	file := filepath.Join(dir, "tendril.hcl")
	text, err := os.ReadFile(file)
	if err != nil {
		return sample, nil, err
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), "\nhealth { tcp = 22 }\n", "", 1)), 0o644); err != nil { //nolint:gosec // a template, for all to read
		return sample, nil, err
	}
	return templates.Template{
		Name: "class", Description: "A teacher's machine and one for each student, in the pool " + simPool + ", with the image " + pvesim.LabImage + ".", Files: os.DirFS(dir),
	}, clean, nil
}
