// Package vm runs whole Tendril on real hypervisors, with Terraform's own provider for them:
// an agent of the built program, a template to copy from examples/templates, three libvirt
// daemons with QEMU below.
//
// What Tendril's own driver does with them is tested in internal/pool/libvirt. `make e2e-vm`
// runs both, as root, for they need what scripts/vm-deps.sh makes.
package vm
