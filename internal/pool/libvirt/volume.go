package libvirt

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/tendril-run/tendril/internal/pool"
)

// copyLimit bounds the copying of an image on its host.
const copyLimit = 30 * time.Minute

// imagesName is the storage pool of images where the configuration names none.
const imagesName = "images"

// storage is a storage pool of a host.
type storage struct {
	libvirt.StoragePool
	kind string // dir, logical, …
}

// files says that its volumes are files, which can be overlays.
func (s storage) files() bool {
	return slices.Contains([]string{"dir", "fs", "netfs", "gluster"}, s.kind)
}

func (h *host) storage(ctx context.Context, name string) (storage, error) {
	found, err := ask(ctx, h, "looking up storage pool "+name, func(l *libvirt.Libvirt) (libvirt.StoragePool, error) {
		return l.StoragePoolLookupByName(name)
	})
	if is(err, libvirt.ErrNoStoragePool) {
		return storage{}, fmt.Errorf("host %s has no storage pool %q; define it there, or name another one in the template or the pool's configuration: %w", h.name, name, errNoStorage)
	}
	if err != nil {
		return storage{}, err
	}
	text, err := ask(ctx, h, "reading storage pool "+name, func(l *libvirt.Libvirt) (string, error) {
		return l.StoragePoolGetXMLDesc(found, 0)
	})
	if err != nil {
		return storage{}, err
	}
	var document libvirtxml.StoragePool
	if len(text) > maxDocument || xml.Unmarshal([]byte(text), &document) != nil {
		return storage{}, fmt.Errorf("host %s: the document of storage pool %s can't be read", h.name, name)
	}
	return storage{found, document.Type}, nil
}

var errNoStorage = errors.New("no such storage pool")

// imageStorage answers the storage pool whose volumes are images.
func (h *host) imageStorage(ctx context.Context) (storage, error) {
	if h.config.ImageStorage != "" {
		return h.storage(ctx, h.config.ImageStorage)
	}
	found, err := h.storage(ctx, imagesName)
	if !errors.Is(err, errNoStorage) {
		return found, err
	}
	name, _ := allowed("storage", "", h.config.Storages, "default")
	return h.storage(ctx, name)
}

// image is a volume that machines are made from.
type image struct {
	libvirt.StorageVol
	path, format string
	capacity     uint64
}

func (h *host) image(ctx context.Context, name string) (image, error) {
	from, err := h.imageStorage(ctx)
	if err != nil {
		return image{}, err
	}
	volume, err := h.volume(ctx, from, name)
	if errors.Is(err, errNoVolume) {
		// It may have been copied there without libvirt's knowledge.
		_ = h.refresh(ctx, from)
		volume, err = h.volume(ctx, from, name)
	}
	if errors.Is(err, errNoVolume) {
		return image{}, fmt.Errorf("host %s has no image %q in storage pool %s; upload it there, or choose another image", h.name, name, from.Name)
	}
	if err != nil {
		return image{}, err
	}
	document, err := h.describeVolume(ctx, volume)
	if err != nil {
		return image{}, err
	}
	found := image{StorageVol: volume, capacity: document.Capacity.Value}
	if document.Target != nil {
		found.path = document.Target.Path
		if document.Target.Format != nil {
			found.format = document.Target.Format.Type
		}
	}
	if found.format == "" {
		found.format = "raw"
	}
	if slices.Contains([]string{"dir", "iso", "unknown"}, found.format) {
		return image{}, fmt.Errorf("host %s: image %q has the format %s, from which no machine starts; it must be a disk image, such as qcow2", h.name, name, found.format)
	}
	return found, nil
}

var errNoVolume = errors.New("no such volume")

func (h *host) volume(ctx context.Context, in storage, name string) (libvirt.StorageVol, error) {
	found, err := ask(ctx, h, "looking up volume "+name, func(l *libvirt.Libvirt) (libvirt.StorageVol, error) {
		return l.StorageVolLookupByName(in.StoragePool, name)
	})
	if is(err, libvirt.ErrNoStorageVol) {
		return found, errNoVolume
	}
	return found, err
}

// describeVolume reads a volume's document. Its capacity is never nil.
func (h *host) describeVolume(ctx context.Context, volume libvirt.StorageVol) (libvirtxml.StorageVolume, error) {
	var document libvirtxml.StorageVolume
	text, err := ask(ctx, h, "reading volume "+volume.Name, func(l *libvirt.Libvirt) (string, error) {
		return l.StorageVolGetXMLDesc(volume, 0)
	})
	if err != nil {
		return document, err
	}
	if len(text) > maxDocument || xml.Unmarshal([]byte(text), &document) != nil || document.Capacity == nil {
		return document, fmt.Errorf("host %s: the document of volume %s can't be read", h.name, volume.Name)
	}
	return document, nil
}

func (h *host) refresh(ctx context.Context, what storage) error {
	return h.do(ctx, "refreshing storage pool "+what.Name, func(l *libvirt.Libvirt) error {
		return l.StoragePoolRefresh(what.StoragePool, 0)
	})
}

// makeDisk makes a machine's disk. What is there under its name already is this machine's, as
// the name has its id: a whole overlay is used, and all else is made again.
func (h *host) makeDisk(ctx context.Context, spec pool.Spec, p plan, progress pool.Progress) error {
	in, err := h.storage(ctx, p.Storage)
	if err != nil {
		return err
	}
	from, err := h.image(ctx, spec.Image)
	if err != nil {
		return err
	}
	wanted := from.capacity
	if size := uint64(spec.Disk) << 30; spec.Disk > 0 {
		if size < from.capacity {
			return fmt.Errorf("host %s: a disk of %d GiB is smaller than image %q, which has %d GiB; ask for at least that", h.name, spec.Disk, spec.Image, (from.capacity+1<<30-1)>>30)
		}
		wanted = size
	}
	name := diskName(spec.ID, p.format)
	old, err := h.volume(ctx, in, name)
	switch {
	case err == nil:
		document, err := h.describeVolume(ctx, old)
		if err != nil {
			return err
		}
		if !p.FullClone && document.BackingStore != nil && document.BackingStore.Path == from.path && document.Capacity.Value >= wanted {
			progress.Log("host %s: volume %s is whole already", h.name, name)
			return nil
		}
		progress.Log("host %s: volume %s was left unfinished, and is made again", h.name, name)
		if err := h.removeVolume(ctx, in, name); err != nil {
			return err
		}
	case !errors.Is(err, errNoVolume):
		return err
	}
	document := libvirtxml.StorageVolume{
		Name:     name,
		Capacity: &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: wanted},
		Target:   &libvirtxml.StorageVolumeTarget{Format: &libvirtxml.StorageVolumeTargetFormat{Type: p.format}},
	}
	if !p.FullClone {
		document.BackingStore = &libvirtxml.StorageVolumeBackingStore{
			Path:   from.path,
			Format: &libvirtxml.StorageVolumeTargetFormat{Type: from.format},
		}
	}
	text, err := xml.Marshal(document)
	if err != nil {
		return err
	}
	if !p.FullClone {
		_, err := ask(ctx, h, "making volume "+name+" over image "+spec.Image, func(l *libvirt.Libvirt) (libvirt.StorageVol, error) {
			return l.StorageVolCreateXML(in.StoragePool, string(text), 0)
		})
		return err
	}
	made, err := askWithin(ctx, h, copyLimit, h.copies, "copying image "+spec.Image+" to volume "+name, func(l *libvirt.Libvirt) (libvirt.StorageVol, error) {
		return l.StorageVolCreateXMLFrom(in.StoragePool, string(text), from.StorageVol, 0)
	})
	if err != nil {
		return err
	}
	return h.growVolume(ctx, made, wanted)
}

// growVolume makes a volume that no running machine has at least as large as wanted.
func (h *host) growVolume(ctx context.Context, volume libvirt.StorageVol, wanted uint64) error {
	document, err := h.describeVolume(ctx, volume)
	if err != nil || document.Capacity.Value >= wanted {
		return err
	}
	return h.do(ctx, "growing volume "+volume.Name, func(l *libvirt.Libvirt) error {
		return l.StorageVolResize(volume, wanted, 0)
	})
}

// makeSeed makes the volume that cloud-init reads, always from the start: it is small, and half
// an upload can't be told from a whole one.
func (h *host) makeSeed(ctx context.Context, spec pool.Spec, p plan) error {
	content, err := seed(spec)
	if err != nil {
		return err
	}
	in, err := h.storage(ctx, p.Storage)
	if err != nil {
		return err
	}
	name := seedName(spec.ID)
	if err := h.removeVolume(ctx, in, name); err != nil {
		return err
	}
	text, err := xml.Marshal(libvirtxml.StorageVolume{
		Name:     name,
		Capacity: &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: uint64(len(content))},
		Target: &libvirtxml.StorageVolumeTarget{
			Format: &libvirtxml.StorageVolumeTargetFormat{Type: "raw"},
			// It may hold a password.
			Permissions: &libvirtxml.StorageVolumeTargetPermissions{Mode: "0600"},
		},
	})
	if err != nil {
		return err
	}
	volume, err := ask(ctx, h, "making volume "+name, func(l *libvirt.Libvirt) (libvirt.StorageVol, error) {
		return l.StorageVolCreateXML(in.StoragePool, string(text), 0)
	})
	if err != nil {
		return err
	}
	return h.do(ctx, "writing volume "+name, func(l *libvirt.Libvirt) error {
		return l.StorageVolUpload(volume, bytes.NewReader(content), 0, uint64(len(content)), 0)
	})
}

// removeVolume removes a volume if it is there. Only those of the machines are: the name is
// checked once more, as nothing brings a volume back.
func (h *host) removeVolume(ctx context.Context, in storage, name string) error {
	if !strings.HasPrefix(name, volumePrefix) {
		return fmt.Errorf("host %s: volume %q is no machine's of Tendril, and stays", h.name, name)
	}
	volume, err := h.volume(ctx, in, name)
	if errors.Is(err, errNoVolume) {
		return nil
	}
	if err != nil {
		return err
	}
	// A volume that is still being written can't be removed: what writes it ends soon.
	began := time.Now()
	for delay := 100 * time.Millisecond; ; delay = min(2*delay, 2*time.Second) {
		err = h.do(ctx, "removing volume "+name, func(l *libvirt.Libvirt) error {
			return l.StorageVolDelete(volume, 0)
		})
		if is(err, libvirt.ErrNoStorageVol) {
			return nil
		}
		if !is(err, libvirt.ErrOperationInvalid) || time.Since(began) > copyLimit {
			return err
		}
		if waitErr := wait(ctx, delay); waitErr != nil {
			return err
		}
	}
}

// wait waits for a time, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
