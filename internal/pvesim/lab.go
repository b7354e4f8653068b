package pvesim

import "fmt"

// The token of a Lab, with the privileges that docs/MACHINES.md has an agent's token be given.
const labToken = "tendril@pve!agent"

// LabImage is the image that each node of a Lab has.
const LabImage = "debian"

// Lab starts a cluster of three equal nodes, each with LabImage, whose time passes speed times as
// fast. token is what an agent's token_file holds.
func Lab(options Options) (s *Server, token string, err error) {
	options.Nodes = []Node{{Name: "pve1", Cores: 16, Memory: 64 << 30}, {Name: "pve2", Cores: 16, Memory: 64 << 30}, {Name: "pve3", Cores: 16, Memory: 64 << 30}}
	options.Storages = []Storage{
		{Name: "local", Type: "dir", Path: "/var/lib/vz", Content: "iso,vztmpl,backup,snippets,import", Size: 100 << 30},
		{Name: "disks", Type: "dir", Path: "/srv/disks", Content: "images,rootdir", Size: 400 << 30},
	}
	if s, err = Start(options); err != nil {
		return nil, "", err
	}
	for i, n := range options.Nodes {
		id := 9000 + i
		s.Machine(n.Name, id, map[string]string{
			"name": LabImage, "memory": "1024", "cores": "1", "agent": "1", "ostype": "l26", "scsihw": "virtio-scsi-pci", "boot": "order=scsi0", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
			"scsi0": fmt.Sprintf("disks:%[1]d/vm-%[1]d-disk-0.qcow2,size=4G", id), "ide2": fmt.Sprintf("disks:%[1]d/vm-%[1]d-cloudinit.qcow2,media=cdrom,size=4M", id),
		})
		s.Template(id)
	}
	secret := newUUID()
	s.AddToken(Token{ID: labToken, Secret: secret})
	for path, role := range map[string]string{"/vms": "PVEVMAdmin", "/storage": "PVEDatastoreUser", "/nodes": "Sys.Audit", "/sdn/zones/localnetwork": "SDN.Use"} {
		s.Grant("tendril@pve", path, role)
	}
	return s, labToken + "=" + secret, nil
}
